package exchange

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/larder-io/larder/httpapi/request"
)

// TestContextsOfAuditedRequestsStartNoGoroutines checks that deriving contexts starts no goroutines. Package context
// starts one for each child of a context of an unknown type.
func TestContextsOfAuditedRequestsStartNoGoroutines(t *testing.T) {
	server, stop := context.WithCancel(t.Context())
	defer stop()
	r := new(request.Request)
	err := r.Parse("POST", "/api/v1/namespaces/a/pods")
	if err != nil {
		t.Fatal(err)
	}
	bound, cancel := context.WithTimeout(server, time.Minute)
	defer cancel()
	ctx, before := NewAuditRecord(server, "id", r).Context(bound), runtime.NumGoroutine()
	const children = 100
	for range children {
		_, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
	}
	if now := runtime.NumGoroutine(); now > before+children/2 {
		t.Errorf("%d goroutines, %d before %d contexts were made", now, before, children)
	}
}

// carrier has no client that leaves.
type carrier struct{ Carrier }

func (carrier) OnEnd(func()) {}

func (carrier) Fields() []Field { return nil }

// TestContextsOfRequests checks the deadlines of a request's contexts, and that the contexts have the values of Carry.
func TestContextsOfRequests(t *testing.T) {
	received := time.Now()
	by := received.Add(time.Minute)
	for name, deadline := range map[string]time.Time{"short": by, "long-running": {}} {
		x := new(Exchange)
		x.Init(carrier{}, received, t.Context())
		x.PrepareBy, x.Deadline = by, deadline
		x.ReplaceBase(func(ctx context.Context) context.Context { return context.WithValue(ctx, carrier{}, 1) })
		prepared, release := x.PrepareContext()
		defer release()
		if until, _ := prepared.Deadline(); !until.Equal(by) || prepared.Value(carrier{}) == nil {
			t.Errorf("%s: prepared until %v", name, until)
		}
		if until, _ := x.Base().Deadline(); !until.Equal(deadline) || x.Base().Value(carrier{}) == nil {
			t.Errorf("%s: served until %v", name, until)
		}
	}
}
