package exchange

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
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

func (carrier) Until(ctx context.Context) context.Context { return ctx }

// TestWritesEndAtTheDeadlineOfTheirRequest checks that a request that has waited has less time to write.
func TestWritesEndAtTheDeadlineOfTheirRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for waited, most := range map[time.Duration]time.Duration{0: maxWriteTime, 45 * time.Second: 15 * time.Second} {
			x := &Exchange{Carrier: carrier{}, Deadlines: NewDeadlines(t.Context(), time.Minute), Received: time.Now().Add(-waited)}
			x.Deadline = x.Received.Add(time.Minute)
			ctx, cancel := x.BoundedWrite()
			until, _ := ctx.Deadline()
			cancel()
			if late := until.Sub(x.Received.Add(waited + most)); late < 0 || late > 2*deadlineStep {
				t.Errorf("after %v the write ends %v later than %v", waited, late, most)
			}
		}
	})
}
