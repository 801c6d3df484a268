package relay

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/client-go/rest"
)

const (
	// credentialTimeout is how long a request waits for the plugin that makes the relay's credential.
	credentialTimeout = 10 * time.Second
	// maxUnanswered limits the requests of a patient. Those that it has given up count as long as the plugin runs.
	maxUnanswered = 1000
)

var errNoCredential = errors.New("relay: the plugin that makes the relay's credential does not answer")

// TransportFor is [rest.TransportFor], but requests wait for a credential plugin only until their contexts end, and at
// most for credentialTimeout. client-go lets all of them wait for as long as the plugin runs. So does a goroutine of each
// request that was given up.
func TransportFor(config *rest.Config) (http.RoundTripper, error) {
	plugin := config.ExecProvider != nil || config.AuthProvider != nil
	if plugin {
		config = rest.CopyConfig(config)
		config.Wrap(func(base http.RoundTripper) http.RoundTripper { return begins{base} }) // below what runs the plugin
	}
	next, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	if plugin {
		next = &patient{next, semaphore.NewWeighted(maxUnanswered)}
	}
	return next, nil
}

// patient sends requests by a transport that runs a plugin first.
type patient struct {
	next       http.RoundTripper
	unanswered *semaphore.Weighted
}

type limitKey struct{} // of the timer that ends the context of a request

// RoundTrip implements http.RoundTripper. A request that it has given up is not sent later, because its context has ended.
func (p *patient) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, giveUp := context.WithCancelCause(req.Context()) // ends with the request, after its answer was read
	limit := time.AfterFunc(credentialTimeout, func() { giveUp(errNoCredential) })
	defer limit.Stop()
	var resp *http.Response
	err, answered := error(nil), make(chan struct{})
	if p.unanswered.Acquire(ctx, 1) == nil {
		go func() { // ends with the plugin
			defer p.unanswered.Release(1)
			resp, err = p.next.RoundTrip(req.Clone(context.WithValue(ctx, limitKey{}, limit)))
			close(answered)
		}()
	}
	select {
	case <-answered:
		return resp, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// begins sends a request that has its credential.
type begins struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b begins) RoundTrip(req *http.Request) (*http.Response, error) {
	limit := req.Context().Value(limitKey{}).(*time.Timer)
	limit.Stop()
	resp, err := b.next.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		limit.Reset(credentialTimeout) // the plugin runs again
	}
	return resp, err
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (p *patient) WrappedRoundTripper() http.RoundTripper { return p.next }

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (b begins) WrappedRoundTripper() http.RoundTripper { return b.next }
