package table_test

import (
	"bytes"
	"fmt"
	"math/rand"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/apihelpers"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/internal/registry/wire"
)

// sameRows checks that a Table from cached rows equals the one that upstream's printer and encoder make at the same
// instant: the clock of a synctest bubble does not advance.
func sameRows(t *testing.T, v *registry.View, objects []*cache.Object, include metav1.IncludeObjectPolicy, gv schema.GroupVersion) {
	t.Helper()
	list, options := wire.ListMeta{Revision: 99, Continue: "<c>"}, &metav1.TableOptions{IncludeObject: include}
	got := rowsOf(t, v, objects, list, options, gv)
	if got == nil && v.Resource.GroupResource.Resource == "flowschemas" { // its printer sorts the rows
		return
	}
	table, err := v.Table(t.Context(), objects, list, options, gv)
	if err != nil {
		t.Fatal(err)
	}
	codecs := apihelpers.GetMetaInternalVersionCodecs()
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	var want bytes.Buffer
	if err := codecs.EncoderForVersion(info.Serializer, gv).Encode(table, &want); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("Table:\n got %s\nwant %s", got, want.Bytes())
	}
}

// aged returns a fuzzed object with plausible times: some equal, some seconds to days after its creation, some in the
// future.
func aged(t *testing.T, r *registry.Resource, random *rand.Rand, seed int64) *cache.Object {
	t.Helper()
	obj := r.Codec().New()
	registrytest.Fill(obj, rand.NewSource(seed))
	scales := []time.Duration{time.Second, 10 * time.Second, time.Minute, time.Hour, 50 * time.Hour, 300 * 24 * time.Hour}
	birth := time.Now().Truncate(time.Second).Add(-time.Duration(random.Int63n(int64(scales[random.Intn(len(scales))]))).Truncate(time.Second))
	scale := scales[random.Intn(len(scales))]
	times := timesIn(reflect.ValueOf(obj), nil)
	for _, at := range times {
		later := time.Duration(random.Int63n(int64(scale)))
		if random.Intn(3) > 0 {
			later = later.Truncate(time.Second)
		}
		*at = birth.Add(later)
	}
	value, err := r.Codec().EncodeStored(obj)
	if err != nil {
		t.Fatal(err)
	}
	o := registrytest.Object(r, fmt.Sprintf("ns/object-%d", seed), value, seed+5)
	if err := o.Err(); err != nil {
		t.Fatal(err)
	}
	return o
}

// timesIn appends the times in v, except those in maps and interfaces, to dst.
func timesIn(v reflect.Value, dst []*time.Time) []*time.Time {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return timesIn(v.Elem(), dst)
		}
	case reflect.Slice:
		for i := range v.Len() {
			dst = timesIn(v.Index(i), dst)
		}
	case reflect.Struct:
		if at, ok := v.Addr().Interface().(*time.Time); ok {
			if !at.IsZero() {
				dst = append(dst, at)
			}
			return dst
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				dst = timesIn(v.Field(i), dst)
			}
		}
	}
	return dst
}

// TestRowsMatchUpstream compares Tables of every served kind with upstream's, at increasing ages.
func TestRowsMatchUpstream(t *testing.T) {
	server := registrytest.New(t, nil)
	for _, group := range server.Registry.Groups() {
		for _, version := range group.Versions {
			for _, e := range version.Endpoints {
				if e.View == nil {
					continue
				}
				t.Run(e.GVR.GroupVersion().String()+"/"+e.GVR.Resource, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { testRows(t, e.View) })
				})
			}
		}
	}
}

func testRows(t *testing.T, v *registry.View) {
	random := rand.New(rand.NewSource(1))
	var objects []*cache.Object
	for seed := range int64(12) {
		objects = append(objects, aged(t, v.Resource, random, seed))
	}
	objects = append(objects, registrytest.NewSample(t, v.Resource, 1).Object, registrytest.NewSample(t, v.Resource, 2).Object)
	cached := 0
	for _, o := range objects {
		ok, err := v.RowCached(o)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			cached++
		}
	}
	if cached < 6 {
		t.Errorf("%d of %d rows can be cached, want 6 or more", cached, len(objects))
	}
	for _, wait := range []time.Duration{0, time.Second, 500 * time.Millisecond, 59 * time.Second, time.Minute, 10 * time.Minute, 3 * time.Hour, 5 * time.Hour, 40 * time.Hour, 8 * 24 * time.Hour, 700 * 24 * time.Hour, 3000 * 24 * time.Hour} {
		time.Sleep(wait)
		for _, gv := range []schema.GroupVersion{metav1.SchemeGroupVersion, metav1beta1.SchemeGroupVersion} {
			for _, include := range []metav1.IncludeObjectPolicy{"", metav1.IncludeNone, metav1.IncludeObject} {
				sameRows(t, v, objects, include, gv)
			}
		}
		if t.Failed() {
			t.Fatalf("after %v", wait)
		}
	}
}

// rowCase is an object, and whether its row cannot be cached.
type rowCase struct {
	name     string
	resource schema.GroupVersionResource
	object   runtime.Object
	volatile bool
}

func rowCases(now time.Time) []rowCase {
	at := func(ago time.Duration) metav1.Time { return metav1.NewTime(now.Add(-ago).Truncate(time.Second)) }
	pod := func(ago time.Duration, restarts ...time.Duration) *corev1.Pod {
		p := registrytest.Pod(1)
		p.CreationTimestamp = at(ago)
		for i, r := range restarts {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
				Name: fmt.Sprintf("c%d", i), RestartCount: 2,
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: at(r), StartedAt: at(r + time.Second)}},
			})
		}
		return p
	}
	job := func(created, started, completed time.Duration) *batchv1.Job {
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j", Namespace: "default", CreationTimestamp: at(created)}}
		start, end := at(started), at(completed)
		j.Status.StartTime = &start
		if completed > 0 {
			j.Status.CompletionTime = &end
		}
		return j
	}
	succeeded := pod(time.Hour)
	succeeded.Status.Phase = corev1.PodSucceeded
	unclear := pod(9*time.Hour, 5*time.Hour)
	unclear.Status.InitContainerStatuses = pod(9*time.Hour, 5*time.Hour+time.Second).Status.ContainerStatuses
	ended := pod(time.Hour)
	ended.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	event := func(first, last, precise time.Duration) *corev1.Event {
		e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default", CreationTimestamp: at(first)}, Count: 3, Message: "60s <m> 60s"}
		if precise > 0 {
			e.EventTime = metav1.NewMicroTime(now.Add(-precise))
			return e
		}
		e.FirstTimestamp, e.LastTimestamp = at(first), at(last)
		return e
	}
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	jobs := schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	events := schema.GroupVersionResource{Version: "v1", Resource: "events"}
	return []rowCase{
		{"pod", pods, pod(time.Hour), false},
		{"pod without creation", pods, pod(0), false},
		{"pod created in the future", pods, pod(-time.Hour), false},
		{"pod created long ago", pods, pod(150 * year), false},
		{"completed pod", pods, succeeded, false},
		{"pod with the bookmark annotation", pods, ended, false},
		{"pod restarted once", pods, pod(9*24*time.Hour, 65*time.Minute), false},
		{"pod restarted at its creation", pods, pod(time.Hour, time.Hour), false},
		{"pod restarted a second later", pods, pod(time.Hour, time.Hour-time.Second), false},
		{"pod restarted twice", pods, pod(time.Hour, 20*time.Minute, 19*time.Minute+59*time.Second), false},
		{"pod aged 200 years", pods, pod(200*year, time.Second), false},
		{"pod with ambiguous restarts", pods, unclear, true},
		{"finished job", jobs, job(time.Hour, time.Hour-time.Second, 60*time.Second), false},
		{"running job", jobs, job(time.Hour, time.Hour-time.Second, 0), false},
		{"running job started at once", jobs, job(time.Hour, time.Hour, 0), false},
		{"event", events, event(time.Hour, time.Minute, 0), false},
		{"event of one instant", events, event(time.Minute, time.Minute, 0), false},
		{"event with a precise time", events, event(time.Hour, 0, time.Hour-300*time.Millisecond), false},
	}
}

const year = 365 * 24 * time.Hour

// TestRowCases checks rows with unusual ages, over years.
func TestRowCases(t *testing.T) {
	server := registrytest.New(t, nil)
	synctest.Test(t, func(t *testing.T) {
		for _, c := range rowCases(time.Now()) {
			v := server.Registry.Endpoint(c.resource, "").View
			obj := v.Resource.Codec().New()
			if err := legacyscheme.Scheme.Convert(c.object, obj, nil); err != nil {
				t.Fatal(err)
			}
			value, err := v.Resource.Codec().EncodeStored(obj)
			if err != nil {
				t.Fatal(err)
			}
			o := registrytest.Object(v.Resource, "default/o", value, 5)
			if cached, err := v.RowCached(o); err != nil || cached == c.volatile {
				t.Errorf("%s: row can be cached: %v, error %v; want %v", c.name, cached, err, !c.volatile)
			}
			decodes := v.Resource.Codec().Decodes()
			sameRows(t, v, []*cache.Object{o}, "", metav1.SchemeGroupVersion) // decodes for the comparison
			if n := v.Resource.Codec().Decodes() - decodes; n != 1 && !c.volatile {
				t.Errorf("%s: decoded %d times, want once", c.name, n)
			}
			random := rand.New(rand.NewSource(2))
			for step := time.Second; step < 10*year; step += time.Duration(random.Int63n(int64(step))) {
				sameRows(t, v, []*cache.Object{o, o}, metav1.IncludeNone, metav1.SchemeGroupVersion)
				if t.Failed() {
					t.Fatalf("%s: at %v", c.name, time.Now())
				}
				time.Sleep(time.Duration(random.Int63n(int64(step))))
			}
		}
	})
}
