package loopback

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/internal/registry/bootstrap"
)

// roundTripper is a function.
type roundTripper func(*http.Request) (*http.Response, error)

func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// TestEarlyRequestsWait checks that a request before the server serves waits until its context ends.
func TestEarlyRequestsWait(t *testing.T) {
	transport := NewTransport()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://x/", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := transport.RoundTrip(req); !errors.Is(err, context.Canceled) {
		t.Errorf("answered %v, %v", resp, err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := transport.RoundTrip(req.WithContext(t.Context()))
		answered <- err
	}()
	transport.Attach(roundTripper(func(*http.Request) (*http.Response, error) { return nil, net.ErrClosed }))
	if err := <-answered; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the attached program sent no response: %v", err)
	}
}

// idler is a RoundTripper that counts calls of CloseIdleConnections.
type idler struct {
	http.RoundTripper
	closed int
}

func (i *idler) CloseIdleConnections() { i.closed++ }

// TestIdleConnectionsAreClosed checks that the server's transport is asked to close its idle connections.
func TestIdleConnectionsAreClosed(t *testing.T) {
	transport, next := NewTransport(), new(idler)
	transport.Attach(next)
	transport.CloseIdleConnections()
	if next.closed != 1 {
		t.Errorf("called %d times", next.closed)
	}
}

// TestServicesResync checks that a handler of Services or IPAddresses that joins after the start is called at every
// interval. Upstream's repair of service addresses needs this.
func TestServicesResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		meta := metav1.ObjectMeta{Namespace: "default", Name: "web"}
		factory := NewInformers(fake.NewClientset(&corev1.Service{ObjectMeta: meta}, &networkingv1.IPAddress{ObjectMeta: meta}))
		informers := []cache.SharedIndexInformer{factory.Core().V1().Services().Informer(), factory.Networking().V1().IPAddresses().Informer()}
		stop := make(chan struct{})
		factory.Start(stop)
		factory.WaitForCacheSync(stop)
		var updates [2]atomic.Int32
		for i, informer := range informers {
			_, err := informer.AddEventHandlerWithResyncPeriod(cache.ResourceEventHandlerFuncs{
				UpdateFunc: func(any, any) { updates[i].Add(1) },
			}, bootstrap.RepairInterval)
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(4*bootstrap.RepairInterval + time.Minute)
		for i := range updates {
			if n := updates[i].Load(); n < 3 {
				t.Errorf("informer %d: called %d times", i, n)
			}
		}
		close(stop)
		factory.Shutdown()
	})
}

// TestHandledFollowsHandlers checks that Handled waits for handlers that are slower than the informer's store. Informers
// that no part has requested are not started: their resources may be disabled.
func TestHandledFollowsHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, client := t.Context(), fake.NewClientset()
		factory, configurations := NewInformers(client), client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
		informer, proceed := factory.Admissionregistration().V1().ValidatingWebhookConfigurations().Informer(), make(chan struct{})
		for _, handle := range []func(){func() {}, func() { <-proceed }} {
			if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
				AddFunc: func(any) { handle() }, UpdateFunc: func(any, any) { handle() }, DeleteFunc: func(any) { handle() },
			}); err != nil {
				t.Fatal(err)
			}
		}
		stop := make(chan struct{})
		factory.Start(stop)
		if started := factory.WaitForCacheSync(stop); len(started) != 1 {
			t.Errorf("the informers %v were started, want only the requested one", started)
		}
		configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		for _, step := range []struct {
			name  string
			write func() error
		}{
			{"create", func() error { _, err := configurations.Create(ctx, configuration, metav1.CreateOptions{}); return err }},
			{"update", func() error { _, err := configurations.Update(ctx, configuration, metav1.UpdateOptions{}); return err }},
			{"delete", func() error { return configurations.Delete(ctx, "a", metav1.DeleteOptions{}) }},
		} {
			if err := step.write(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if Handled(informer, "a") {
				t.Errorf("%s: handled before the handler returned", step.name)
			}
			proceed <- struct{}{}
			synctest.Wait()
			if !Handled(informer, "a") || !Handled(informer, "b") {
				t.Errorf("%s: not handled after the handler returned", step.name)
			}
		}
		close(stop)
		factory.Shutdown()
	})
}
