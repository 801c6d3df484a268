package writes

import (
	"context"
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/internal/flow"
	"github.com/larder-io/larder/internal/proctest"
)

// converting returns a write that may call a conversion webhook and holds a seat, and the count of seats.
func converting(ctx context.Context) (*Write, *flow.Gauge) {
	seats := new(flow.Gauge)
	seats.Add(1)
	x := &exchange.Exchange{Seat: exchange.Seat{Gauge: seats}}
	return &Write{Exchange: x, endpoint: &Endpoint{Config: Config{Converts: true}}, ctx: ctx}, seats
}

// TestSeatsOfWritesThatConvert checks that a write's response holds its seat if the write ends in time, and that otherwise
// the seat is held until the write ends.
func TestSeatsOfWritesThatConvert(t *testing.T) {
	for name, store := range map[string]func(*Write) (runtime.Object, error){
		"stored": func(*Write) (runtime.Object, error) { return &metav1.Status{Status: metav1.StatusSuccess}, nil },
		"failed": func(*Write) (runtime.Object, error) { return nil, errors.New("failed") },
		"panic":  func(*Write) (runtime.Object, error) { panic("panic") },
	} {
		w, seats := converting(t.Context())
		func() {
			defer func() { _ = recover() }()
			_, _ = w.finish(store)
		}()
		if n := seats.Add(0); n != 1 {
			t.Errorf("%s: %d seats are held before the response is sent, want 1", name, n)
		}
		w.Close()
		if n := seats.Add(0); n != 0 {
			t.Errorf("%s: %d seats are held at the end", name, n)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w, seats := converting(ctx)
	hangs := make(chan struct{})
	if _, err := w.finish(func(*Write) (runtime.Object, error) { <-hangs; return nil, ctx.Err() }); !apierrors.IsTimeout(err) {
		t.Errorf("got %v, want a timeout", err)
	}
	w.Close()
	if n := seats.Add(0); n != 1 {
		t.Errorf("%d seats are held while a write waits for the webhook, want 1", n)
	}
	close(hangs)
	proctest.Eventually(t, "the seat is released", func() error {
		if n := seats.Add(0); n != 0 {
			return fmt.Errorf("%d are held", n)
		}
		return nil
	})
}
