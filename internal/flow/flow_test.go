package flow

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	defaults "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/component-base/metrics/legacyregistry"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/internal/proctest"
)

// drawFlow draws a request and its user from a few of each.
func drawFlow(r *rapid.T) (*flowRequest, user.Info) {
	draw := func(name string, of ...string) string { return rapid.SampledFrom(of).Draw(r, name) }
	request := onPods(draw("verb", "get", "list", "create", "update", "patch", "delete", "deletecollection"))
	info := &request.info
	info.Namespace = draw("namespace", "", "a", "kube-system")
	info.Resource = draw("resource", "pods", "nodes", "leases", "endpoints", "events")
	info.APIGroup = draw("group", "", "coordination.k8s.io")
	info.Subresource = draw("subresource", "", "status", "eviction")
	info.Name = draw("name", "", "x", "y")
	if draw("kind", "resource", "resource", "path") == "path" {
		*info = apirequest.RequestInfo{Verb: info.Verb, Path: draw("path", "/healthz", "/version", "/openapi/v2", "/livez/x")}
	}
	who := &user.DefaultInfo{Name: draw("user", "u", "system:node:n", "system:kube-scheduler", "system:kube-controller-manager",
		"system:serviceaccount:a:b", "system:serviceaccount:kube-system:b", user.Anonymous)}
	who.Groups = rapid.SampledFrom([][]string{
		{user.AllAuthenticated}, {user.AllUnauthenticated}, {user.SystemPrivilegedGroup, user.AllAuthenticated},
		{"system:nodes", user.AllAuthenticated}, {"system:serviceaccounts", "system:serviceaccounts:a", user.AllAuthenticated}, nil,
	}).Draw(r, "groups")
	return request, who
}

// TestFlowAwaitsItsConfiguration checks that after Await, requests belong to their stored priority levels. Await does
// not wait in a new cluster, which has none.
func TestFlowAwaitsItsConfiguration(t *testing.T) {
	f, begin := prepareFlow(t, 600, flowConfiguration()...)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Await(over); !errors.Is(err, context.Canceled) {
		t.Errorf("before it runs: %v", err)
	}
	begin()
	if err := f.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 20 { // a select would choose between the two at random
		if err := f.Await(over); err != nil {
			t.Fatalf("after it has loaded: %v", err)
		}
	}
	for level, who := range flowUsers {
		var seat Seat
		request := onPods("list")
		class, ok := f.Acquire(t.Context(), request.attributes(who), request, false, time.Now().Add(time.Minute), &seat)
		seat.Release()
		if !ok || class.Schema != level {
			t.Errorf("%s: %v, class %+v", level, ok, class)
		}
	}
	for name, objects := range map[string][]runtime.Object{
		"nothing": nil, "what is mandatory": {defaults.MandatoryPriorityLevelConfigurations[0].DeepCopy(), defaults.MandatoryPriorityLevelConfigurations[1].DeepCopy()},
	} {
		f, begin := prepareFlow(t, 600, objects...)
		if err := f.Await(over); err != nil {
			t.Errorf("where there is %s: %v", name, err)
		}
		begin() // its goroutines end only with it
	}
}

// TestFlowRemembersClasses checks that cached classes equal the classes of upstream's controller, before and after
// the configuration changes.
func TestFlowRemembersClasses(t *testing.T) {
	f := runFlow(t, 600, flowConfiguration()...)
	check := func(r *rapid.T) {
		request, who := drawFlow(r)
		want := ""
		f.controller.Handle(t.Context(), flowcontrol.RequestDigest{RequestInfo: &request.info, User: who},
			func(fs *flowcontrolv1.FlowSchema, pl *flowcontrolv1.PriorityLevelConfiguration, _ string) {
				want = fs.Name + " " + pl.Name
			},
			func() flowrequest.WorkEstimate { return flowrequest.WorkEstimate{InitialSeats: 1} }, func(bool) {}, func() {})
		for range 2 {
			var seat Seat
			class, ok := f.Acquire(t.Context(), request.attributes(who), request, false, time.Now().Add(time.Minute), &seat)
			seat.Release()
			if got := class.Schema + " " + class.Level; !ok || got != want {
				r.Fatalf("%+v of %+v: %v %s, upstream %s", request.info, who, ok, got, want)
			}
		}
	}
	rapid.Check(t, check)
	client := f.config.Client.FlowcontrolV1().FlowSchemas()
	changed, err := client.Get(t.Context(), "global-default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	changed.Spec.PriorityLevelConfiguration.Name, changed.Spec.MatchingPrecedence = "workload-high", 3
	if _, err := client.Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	request := onPods("get")
	for level := ""; level != "workload-high"; {
		var seat Seat
		class, _ := f.Acquire(t.Context(), request.attributes(flowUsers["global-default"]), request, false, time.Now().Add(time.Minute), &seat)
		seat.Release()
		level = class.Level
	}
	rapid.Check(t, check)
}

// TestKeysTellRequestsApart checks that AppendKey makes equal keys of equal requests only. Decisions of RBAC are
// cached by these keys.
func TestKeysTellRequestsApart(t *testing.T) {
	key := func(v [8]string, onResource bool) string {
		a := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: v[0], Groups: strings.Fields(v[1])}, Verb: v[2], Namespace: v[3]}
		if a.ResourceRequest = onResource; !onResource {
			a.Path = v[4]
			return string(AppendKey(nil, a, ""))
		}
		a.Resource, a.APIGroup, a.Subresource = v[4], v[5], v[6]
		return string(AppendKey(nil, a, v[7]))
	}
	rapid.Check(t, func(r *rapid.T) {
		some := rapid.SampledFrom([]string{"", "a", "b", "ab", "a b"})
		var v [8]string
		for i := range v {
			v[i] = some.Draw(r, "value")
		}
		w := v
		for range 2 {
			w[rapid.IntRange(0, len(w)-1).Draw(r, "changed")] = some.Draw(r, "value")
		}
		if (key(v, true) == key(w, true)) != (v == w) || (key(v, false) == key(w, false)) != slices.Equal(v[:5], w[:5]) || key(v, true) == key(w, false) {
			r.Fatalf("%q and %q: keys %q and %q, as paths %q and %q", v, w, key(v, true), key(w, true), key(v, false), key(w, false))
		}
	})
}

// TestTheControllerDecidesOnce checks that upstream's controller decides on all watches, and on the first request of
// each class. All seats are released, and a panic reaches the caller.
func TestTheControllerDecidesOnce(t *testing.T) {
	f := runFlow(t, 600, flowConfiguration()...)
	acquire := func(request Request, a authorizer.Attributes) (queued, ok bool) {
		var seat Seat
		defer seat.Release()
		_, ok = f.Acquire(t.Context(), a, request, false, time.Now().Add(time.Minute), &seat)
		return seat.Queued(), ok
	}
	for _, c := range []struct {
		verb   string
		queued bool
	}{{"get", true}, {"get", false}, {"watch", true}, {"watch", true}} {
		request := onPods(c.verb)
		if queued, ok := acquire(request, request.attributes(flowUsers["global-default"])); !ok || queued != c.queued {
			t.Errorf("%s: served %v, by the controller %v, want %v", c.verb, ok, queued, c.queued)
		}
	}
	list := onPods("list")
	func() {
		defer func() {
			if cause := recover(); cause != "no URL" {
				t.Errorf("recovered %v", cause)
			}
		}()
		acquire(withoutURL{list}, list.attributes(flowUsers["global-default"]))
	}()
	for _, l := range f.Levels() {
		if l.Taken != 0 || l.Executing != 0 {
			t.Errorf("afterwards: %+v", l)
		}
	}
}

type withoutURL struct{ *flowRequest }

func (withoutURL) URL() *url.URL { panic("no URL") }

// TestRequestsWaitForSeats checks that as many requests are served at once as there are seats. Unless it is free,
// another request waits for a seat, but not beyond its deadline. Upstream's gauges count each request once meanwhile.
func TestRequestsWaitForSeats(t *testing.T) {
	f := runFlow(t, 20, flowConfiguration()...)
	gauges := func() [2]float64 {
		return [2]float64{flowMetric(t, "current_executing_requests", "workload-low"), flowMetric(t, "current_executing_seats", "workload-low")}
	}
	before := gauges()
	check := func(when string, requests, seats int) {
		if n := gauges(); n[0]-before[0] != float64(requests) || n[1]-before[1] != float64(seats) {
			t.Errorf("%s, %v requests have %v seats, want %d and %d", when, n[0]-before[0], n[1]-before[1], requests, seats)
		}
	}
	request := onPods("get")
	a := request.attributes(flowUsers["service-accounts"])
	acquire := func(until time.Duration, seat *Seat) bool {
		_, ok := f.Acquire(t.Context(), a, request, false, time.Now().Add(until), seat)
		return ok
	}
	var seats []*Seat
	for {
		seat := new(Seat)
		if !acquire(10*time.Millisecond, seat) {
			break
		}
		seats = append(seats, seat)
	}
	if len(seats) == 0 || len(seats) > 20 {
		t.Fatalf("%d seats", len(seats))
	}
	check("while a request has waited in vain", len(seats), len(seats))
	checkFree(t, f, func(when string, free int) { check(when, len(seats)+free, len(seats)) })
	var waiting sync.WaitGroup
	late := make([]Seat, 3)
	for i := range late {
		waiting.Go(func() {
			if !acquire(time.Minute, &late[i]) {
				t.Errorf("request %d was refused", i)
			}
		})
	}
	for _, seat := range seats {
		seat.Release()
	}
	waiting.Wait()
	for i := range late {
		late[i].Release()
		late[i].Release() // does nothing
	}
	check("after the last request", 0, 0)
	f.mu.Lock()
	queueSet := f.queueSets["workload-low"]
	f.mu.Unlock()
	queueSet.mu.Lock()
	defer queueSet.mu.Unlock()
	if queueSet.open || queueSet.taken != 0 {
		t.Errorf("%d seats are taken by count, the queues are open: %v", queueSet.taken, queueSet.open)
	}
}

// checkFree checks that free requests are served while their level has no free seat, but at most maxFree of a user. It
// makes no difference whether the controller decides. check checks how many are executing.
func checkFree(t *testing.T, f *Control, check func(when string, free int)) {
	watch, who := onPods("watch"), flowUsers["service-accounts"]
	acquire := func(seat *Seat) bool {
		class, ok := f.Acquire(t.Context(), watch.attributes(who), watch, true, time.Now(), seat)
		return ok && class.Level == "workload-low"
	}
	proctest.Eventually(t, "free requests bypass the controller", func() error {
		var seat Seat
		defer seat.Release()
		if !acquire(&seat) {
			t.Fatal("a free request was refused")
		}
		check("beside a free request", 1)
		if seat.Queued() { // the first of its kind, or the first after a change of the configuration
			return errors.New("the controller has decided")
		}
		return nil
	})
	var free [maxFree + 1]Seat
	for i := range free {
		acquire(&free[i]) // the last may get a seat, if the limit of the level has just grown
		if took := free[i].control != nil; took != (i < maxFree) {
			t.Errorf("request %d is free: %v", i, took)
		}
	}
	for i := range free {
		free[i].Release()
		free[i].Release() // does nothing
	}
	check("after the free requests", 0)
	if len(f.free) != 0 {
		t.Errorf("free requests are left: %v", f.free)
	}
}

// TestRequestsLeaveTheQueueWithTheirContexts checks that a request stops waiting when its context ends.
func TestRequestsLeaveTheQueueWithTheirContexts(t *testing.T) {
	f := runFlow(t, 20, flowConfiguration()...)
	request := onPods("get")
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var seats []*Seat
	asked := make(chan *Seat, 1) // nil: the request got none
	ask := func() {
		seat := new(Seat)
		if _, ok := f.Acquire(ctx, request.attributes(flowUsers["service-accounts"]), request, false, time.Now().Add(time.Hour), seat); !ok {
			seat = nil
		}
		asked <- seat
	}
	go ask()
	proctest.Eventually(t, "a request waits", func() error {
		select {
		case seat := <-asked:
			seats = append(seats, seat)
			go ask()
		default:
		}
		if f.waiting[0].now.Load() == 0 {
			return fmt.Errorf("%d requests have seats", len(seats))
		}
		return nil
	})
	leave()
	if <-asked != nil {
		t.Error("a request whose client has left got a seat")
	}
	if now := f.waiting[0].now.Load(); now != 0 {
		t.Errorf("%d requests wait", now)
	}
	for _, seat := range seats {
		seat.Release()
	}
}

// TestConsistentListsCostWhatCachedOnesDo checks that the estimate for a consistent list equals that of a list from
// the cache. A list at an exact revision takes more seats.
func TestConsistentListsCostWhatCachedOnesDo(t *testing.T) {
	f := runFlow(t, 6000, flowConfiguration()...)
	class := &Class{Schema: "exempt", Level: "exempt"}
	most := flowrequest.DefaultWorkEstimatorConfig().MaximumListSeatsLimit
	for query, want := range map[string]uint64{
		"": min(10, most), "resourceVersion=0": min(10, most), "limit=20": 1, "resourceVersion=7&resourceVersionMatch=Exact": most,
	} {
		r := onPods("list")
		r.query = query
		if got := f.Estimate(r.attributes(flowUsers["exempt"]), r, false, class).InitialSeats; got != want {
			t.Errorf("%q: %d seats, want %d", query, got, want)
		}
	}
}

// TestFlowIsCounted checks that upstream's metrics count requests that its controller did not see.
func TestFlowIsCounted(t *testing.T) {
	f := runFlow(t, 600, flowConfiguration()...)
	acquire := func(seat *Seat) {
		request := onPods("get")
		if _, ok := f.Acquire(t.Context(), request.attributes(flowUsers["global-default"]), request, false, time.Now().Add(time.Minute), seat); !ok {
			t.Fatal("refused")
		}
	}
	var first Seat
	acquire(&first)
	first.Release()
	names := []string{"dispatched_requests_total", "request_execution_seconds", "request_wait_duration_seconds", "work_estimated_seats"}
	f.running.Wait()
	before := make(map[string]float64)
	for _, name := range names {
		before[name] = flowMetric(t, name, "global-default")
	}
	seats := make([]Seat, 5)
	for i := range seats {
		acquire(&seats[i])
	}
	if n := flowMetric(t, "current_executing_seats", "global-default"); n != 5 {
		t.Errorf("%v seats are taken", n)
	}
	for i := range seats {
		seats[i].Release()
	}
	for _, name := range names {
		if n := flowMetric(t, name, "global-default") - before[name]; n != 5 {
			t.Errorf("%s grew by %v", name, n)
		}
	}
}

// flowMetric returns the sum of upstream's metric over the flow schemas of a priority level, without watches.
func flowMetric(t *testing.T, name, level string) (value float64) {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, sample := range family.GetMetric() {
			if family.GetName() == "apiserver_flowcontrol_"+name && has(sample, "priority_level", level) && !has(sample, "type", "watch") {
				value += sample.GetCounter().GetValue() + sample.GetGauge().GetValue() + float64(sample.GetHistogram().GetSampleCount())
			}
		}
	}
	return value
}

func has(sample *dto.Metric, name, value string) bool {
	for _, l := range sample.GetLabel() {
		if l.GetName() == name {
			return l.GetValue() == value
		}
	}
	return false
}

// TestFlowsMayBeMadeAtOnce checks that concurrent calls of New do not race on upstream's variable.
func TestFlowsMayBeMadeAtOnce(t *testing.T) {
	var making sync.WaitGroup
	for range 4 {
		making.Go(func() {
			supportWatchProgress()
			if !feature.DefaultFeatureSupportChecker.Supports(storage.RequestWatchProgress) {
				t.Error("progress requests are not supported")
			}
		})
	}
	making.Wait()
	if _, twice := feature.DefaultFeatureSupportChecker.(watchProgress).FeatureSupportChecker.(watchProgress); twice {
		t.Error("the variable was set twice")
	}
}

// TestDeletedLevelsAreDropped checks that a deleted priority level and the classes of deleted flow schemas leave no
// trace.
func TestDeletedLevelsAreDropped(t *testing.T) {
	f := runFlow(t, 600, flowConfiguration()...)
	request := onPods("get")
	var seat Seat
	if class, ok := f.Acquire(t.Context(), request.attributes(flowUsers["service-accounts"]), request, false, time.Now().Add(time.Minute), &seat); !ok || class.Level != "workload-low" {
		t.Fatalf("class %+v", class)
	}
	defer seat.Release()
	client := f.config.Client.FlowcontrolV1()
	if err := client.FlowSchemas().Delete(t.Context(), "service-accounts", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.PriorityLevelConfigurations().Delete(t.Context(), "workload-low", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "the level is dropped", func() error {
		if slices.ContainsFunc(f.Levels(), func(l Level) bool { return l.Name == "workload-low" }) {
			return errors.New("it is listed")
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		for key := range f.classes {
			if key[0] == "service-accounts" || key[1] == "workload-low" {
				return fmt.Errorf("class %v", key)
			}
		}
		return nil
	})
	if !f.has("global-default") || !f.has("exempt") || !f.has("catch-all") {
		t.Errorf("left are %v", f.Levels())
	}
}

// TestGaugeKeepsItsPeak checks that each call of Peak returns the highest count since the last one, in which requests
// have been counted all the time, part of it, or not at all.
func TestGaugeKeepsItsPeak(t *testing.T) {
	var g Gauge
	for i, step := range []struct {
		deltas []int64
		peak   int
	}{
		{nil, 0},
		{[]int64{1, 1, -1, 1, 1, -1}, 3},
		{nil, 2},
		{[]int64{-1, -1, 1}, 2},
		{[]int64{-1}, 1},
		{nil, 0},
	} {
		for _, delta := range step.deltas {
			g.Add(delta)
		}
		if peak := g.Peak(); peak != step.peak {
			t.Errorf("step %d: peak of %d, want %d", i, peak, step.peak)
		}
	}
}
