package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"github.com/larder-io/larder/httpapi/faults"
)

// bug is a small controller with a bug, and the actions of its users.
type bug struct {
	name string
	kind string // intermediate, stale or unobserved: the class of the bug according to Sieve (OSDI 2022)
	like string // a similar bug of a real controller
	// watched are the resources in the controller's caches.
	watched []string
	// controller returns a function that reconciles a parent. The function's state in memory lives as long as m.
	controller func(m *manager, fixed bool) func(parent string) error
	// steps are the users' actions. After each, the controller finishes its work.
	steps []func(u *trial)
	// report complains about the final state.
	report func(u *trial)
}

// schedule describes the faults that the controller meets during the steps, which are counted from 1.
type schedule struct {
	// lose is the write, counted from 1, whose response is lost after the commit. The controller crashes.
	lose int
	// hold are the resources whose watches are held from before step from until after step until.
	hold        []string
	from, until int
	// restart restarts the controller at that point. With stale, that is the fault: the controller first sees the
	// state of step from, and the rest once it has finished its work.
	restart, stale bool
}

func (s schedule) String() string {
	steps := fmt.Sprintf("step %d", s.from)
	if s.until > s.from {
		steps = fmt.Sprintf("steps %d to %d", s.from, s.until)
	}
	switch {
	case s.lose > 0:
		return fmt.Sprintf("response of write %d lost, restart", s.lose)
	case s.stale:
		return fmt.Sprintf("restart after step %d, lists stale since step %d", s.until, s.from)
	case s.restart:
		return fmt.Sprintf("all watches held in %s, restart", steps)
	case len(s.hold) > 1:
		return fmt.Sprintf("all watches held in %s", steps)
	case len(s.hold) == 1:
		return fmt.Sprintf("watch of %s held in %s", s.hold[0], steps)
	}
	return "none"
}

// schedules returns the schedules that may show the bug, simple ones first. The first schedule is without faults.
func (b *bug) schedules() []schedule {
	all := []schedule{{}}
	if b.kind == "intermediate" {
		for n := range 6 {
			all = append(all, schedule{lose: n + 1})
		}
		return all
	}
	for length := range len(b.steps) {
		for from := 1; from+length <= len(b.steps); from++ {
			until := from + length
			if b.kind == "unobserved" {
				all = append(all, schedule{hold: b.watched, from: from, until: until}, schedule{hold: b.watched, from: from, until: until, restart: true})
				continue
			}
			for _, resource := range b.watched {
				all = append(all, schedule{hold: []string{resource}, from: from, until: until})
			}
			if length > 0 {
				all = append(all, schedule{from: from, until: until, restart: true, stale: true})
			}
		}
	}
	return all
}

// trial is one run of a controller under a schedule, in a namespace of its own.
type trial struct {
	cluster // the users' access, as the administrator
	t       *testing.T
	s       *server
	objects metadata.Interface
	bug     *bug
	fixed   bool
	manager *manager
	held    []string          // resources whose watches are held
	lost    bool              // a response is still to be lost
	data    map[string]string // UIDs of the claims with data
	found   []string          // complaints
	failed  int               // pods
}

// complain reports a violated invariant.
func (u *trial) complain(format string, args ...any) {
	u.found = append(u.found, fmt.Sprintf(format, args...))
}

// ok ends the test after an unexpected error.
func (u *trial) ok(err error) {
	u.t.Helper()
	if err != nil {
		u.t.Fatal(err)
	}
}

// agent is the user agent of controllers.
const agent = "controller"

// start starts the controller.
func (u *trial) start() {
	u.t.Helper()
	config := u.s.as(agent, 2)
	u.manager = newManager(u.t, cluster{u.Context, kubernetes.NewForConfigOrDie(config), u.namespace}, u.bug.watched)
	u.manager.reconcile = u.bug.controller(u.manager, u.fixed)
	u.manager.awaitSynced(u.t)
}

// restart stops the controller and starts it again.
func (u *trial) restart() {
	u.t.Helper()
	u.manager.stop()
	u.start()
}

// set sets a rule for the controller's requests.
func (u *trial) set(name string, r faults.Rule) {
	u.t.Helper()
	r.Name, r.Match.UserAgent, r.Match.Namespace = name, agent, u.namespace
	u.ok(u.s.faults.Set(u.Context, r))
}

// hold holds the watches of resources.
func (u *trial) hold(resources []string) {
	u.t.Helper()
	u.held = resources
	for _, resource := range resources {
		u.set("hold-"+resource, faults.Rule{Match: faults.Match{Resource: resource}, Hold: faults.HoldChanges})
	}
}

// release removes the rules that hold watches and make lists stale.
func (u *trial) release() {
	u.t.Helper()
	u.held = nil
	u.ok(u.s.faults.Clear(u.Context))
}

// versions lists the resourceVersions of a resource's objects, by name, and the revision of the list.
func (u *trial) versions(resource string) (byName map[string]string, revision string) {
	u.t.Helper()
	list, err := u.objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource}).Namespace(u.namespace).List(u.Context, metav1.ListOptions{})
	u.ok(err)
	byName = make(map[string]string)
	for _, o := range list.Items {
		byName[o.Name] = o.ResourceVersion
	}
	return byName, list.ResourceVersion
}

// awaitIdle runs the controller until it has nothing to do. The controller works only while its caches are current,
// except for held watches. While some are held, it may fail again and again.
func (u *trial) awaitIdle() {
	u.t.Helper()
	for range 10 {
		for _, resource := range u.bug.watched {
			if !slices.Contains(u.held, resource) {
				versions, _ := u.versions(resource)
				u.manager.await(u.t, resource, versions)
			}
		}
		parents, progress := u.manager.take(), false
		for _, parent := range parents {
			err := u.manager.reconcile(parent)
			if err != nil && u.lost && u.injected() {
				u.lost = false
				u.restart()
				progress = true
				break
			}
			if err != nil {
				u.manager.again(parent)
			}
			progress = progress || err == nil
		}
		if len(parents) == 0 || len(u.held) > 0 && !progress {
			return
		}
	}
	if len(u.held) == 0 {
		u.complain("the controller never becomes idle")
	}
}

// injected reports whether the controller has met a fault.
func (u *trial) injected() bool {
	state, err := u.s.faults.State(u.Context)
	u.ok(err)
	return len(state.Injected) > 0
}

// run runs the steps under a schedule and returns the report.
func (u *trial) run(s schedule) []string {
	u.t.Helper()
	if u.lost = s.lose > 0; u.lost {
		u.set("lose", faults.Rule{Lose: faults.LoseCut, Skip: s.lose - 1, Times: 1})
	}
	u.start()
	defer func() { u.manager.stop(); u.ok(u.s.faults.Clear(u.Context)) }()
	var past string
	for i, step := range u.bug.steps {
		if i+1 == s.from && !s.stale {
			u.hold(s.hold)
		}
		step(u)
		if i+1 == s.from && s.stale {
			_, past = u.versions(u.bug.watched[0])
		}
		u.awaitIdle()
		if i+1 != s.until {
			continue
		}
		if s.stale {
			at, err := strconv.ParseInt(past, 10, 64)
			u.ok(err)
			u.set("stale", faults.Rule{StaleAt: at})
			u.hold(u.bug.watched)
			u.restart()
			u.awaitIdle()
		}
		u.release()
		if s.restart && !s.stale {
			u.restart()
		}
		u.awaitIdle()
	}
	u.bug.report(u)
	return u.found
}

// TestBugsAreFound searches for a schedule that shows the bug of each controller. Such a schedule must exist, and no
// schedule may fail with the fixed controller.
func TestBugsAreFound(t *testing.T) {
	s := serve(t, "serve", "--faults", "true", "--disable-admission-plugins", "ServiceAccount,StorageObjectInUseProtection")
	objects, err := metadata.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	admin := kubernetes.NewForConfigOrDie(s.config)
	document, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "faults.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range slices.Concat(intermediateBugs(), staleBugs(), unobservedBugs()) {
		t.Run(strings.ReplaceAll(b.name, " ", "_"), func(t *testing.T) {
			try := func(sched schedule, fixed bool) []string {
				u := &trial{cluster: cluster{t.Context(), admin, namespaceFor(t, admin)}, t: t, s: s, objects: objects, bug: b, fixed: fixed, data: make(map[string]string)}
				return u.run(sched)
			}
			began := time.Now()
			all := b.schedules()
			at := slices.IndexFunc(all, func(sched schedule) bool {
				found := try(sched, false)
				if len(found) > 0 {
					t.Logf("%v: %v", sched, found)
				}
				return len(found) > 0
			})
			if at < 1 {
				t.Fatalf("found by schedule %d of %d; the first is without faults", at+1, len(all))
			}
			t.Logf("found by schedule %d of %d after %v", at+1, len(all), time.Since(began))
			if row := fmt.Sprintf("| %s | %s | %s | %v |", b.name, b.kind, b.like, all[at]); !strings.Contains(string(document), row) {
				t.Errorf("docs/faults.md has no row %q", row)
			}
			for _, sched := range all {
				if found := try(sched, true); len(found) > 0 {
					t.Errorf("the fixed controller failed with %v: %v", sched, found)
				}
			}
		})
	}
}

// namespaceFor creates a namespace.
func namespaceFor(t *testing.T, admin kubernetes.Interface) string {
	t.Helper()
	made, err := admin.CoreV1().Namespaces().Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "trial-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made.Name
}
