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

// carrier is a request whose client leaves when leave is called.
type carrier struct {
	Carrier
	leave func()
}

func (c *carrier) OnEnd(f func()) { c.leave = f }

func (*carrier) Fields() []Field { return nil }

// TestContextsOfRequests checks the deadlines of a request's contexts, that the contexts have the values of Carry, and
// that they end when the client leaves.
func TestContextsOfRequests(t *testing.T) {
	received := time.Now()
	by := received.Add(time.Minute)
	for name, deadline := range map[string]time.Time{"short": by, "long-running": {}} {
		x, c := new(Exchange), new(carrier)
		x.Init(c, received, t.Context())
		x.PrepareBy, x.Deadline = by, deadline
		x.ReplaceBase(func(ctx context.Context) context.Context { return context.WithValue(ctx, c, 1) })
		prepared, release := x.PrepareContext()
		defer release()
		if until, _ := prepared.Deadline(); !until.Equal(by) || prepared.Value(c) == nil {
			t.Errorf("%s: prepared until %v", name, until)
		}
		if until, _ := x.Base().Deadline(); !until.Equal(deadline) || x.Base().Value(c) == nil {
			t.Errorf("%s: served until %v", name, until)
		}
		if c.leave(); prepared.Err() == nil || x.Base().Err() == nil {
			t.Errorf("%s: served after the client has left", name)
		}
	}
}
