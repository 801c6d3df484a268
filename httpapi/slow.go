package httpapi

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/writes"
)

const (
	// slowFrom is how long a write, GET or LIST may take before the log says where the time went
	// (apiserver pkg/endpoints/handlers/get.go).
	slowFrom = 500 * time.Millisecond

	// slowVerbosity is the verbosity from which it does (k8s.io/utils/trace).
	slowVerbosity = 2
)

// slowRequest measures a write, GET or LIST. The time in which a large list is sent does not
// count.
type slowRequest struct {
	began  time.Time // zero: slow requests are not logged
	waited time.Duration
}

// timed starts to measure x.
func timed(x *apiCall) slowRequest {
	if !klog.V(slowVerbosity).Enabled() {
		return slowRequest{}
	}
	return slowRequest{time.Now(), x.Waited}
}

// log writes to the log where the time of x went if it was slow, as k8s.io/utils/trace does. That package
// would need the attributes of every request.
func (r slowRequest) log(x *apiCall) {
	took := time.Since(r.began)
	if r.began.IsZero() || took < slowFrom {
		return
	}
	klog.V(slowVerbosity).Info(r.text(x, took))
}

func (r slowRequest) text(x *apiCall, took time.Duration) string {
	name, stored := writes.SpanName(x.Verb), "About to write a response"
	switch x.Verb {
	case "list":
		stored = "Listing from storage done"
	case "create", "update":
		stored = "Write to database call succeeded"
	case "patch":
		stored = "Object stored in database"
	case "delete":
		stored = "Object deleted from database"
	}
	var fields []string
	for _, f := range attributesOf(x) {
		fields = append(fields, fmt.Sprintf("%s:%v", f.Key, f.Value.AsInterface()))
	}
	const clock = "15:04:05.000"
	waited := x.Waited - r.waited // most of what a slow request does is to wait for the store
	var b strings.Builder
	id := rand.Int32()
	fmt.Fprintf(&b, "Trace[%d]: %q %s (%v) (total time: %vms):", id, name, strings.Join(fields, ","), r.began.Format("02-Jan-2006 "+clock), took.Milliseconds())
	step := func(what string, from, to time.Duration) {
		fmt.Fprintf(&b, "\nTrace[%d]: ---%q %vms (%v)", id, what, (to - from).Milliseconds(), r.began.Add(to).Format(clock))
	}
	const share = slowFrom / 3 // of each of two steps and what follows, as that package has it
	if waited >= share {
		step(stored, 0, waited)
	}
	if took-waited >= share {
		step("Writing http response done", waited, took)
	}
	fmt.Fprintf(&b, "\nTrace[%d]: [%v] [%v] END\n", id, took, took)
	return b.String()
}
