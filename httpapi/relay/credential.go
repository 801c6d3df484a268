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
	// credentialTimeout is how long a request waits for the relay's credential plugin.
	credentialTimeout = 10 * time.Second
	// maxWaiting limits the requests that wait for the plugin. Abandoned requests count as long as the plugin runs.
	maxWaiting = 1000
)

var errNoCredential = errors.New("relay: the relay's credential plugin does not respond")

// TransportFor is [rest.TransportFor], but requests wait for a credential plugin only until their contexts end, and
// at most for credentialTimeout. client-go makes all of them wait until the plugin ends. An abandoned request leaves
// a goroutine, which ends with the plugin.
func TransportFor(config *rest.Config) (http.RoundTripper, error) {
	plugin := config.ExecProvider != nil || config.AuthProvider != nil
	if plugin {
		config = rest.CopyConfig(config)
		config.Wrap(func(base http.RoundTripper) http.RoundTripper { return credentialTransport{base} }) // below what runs the plugin
	}
	next, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	if plugin {
		next = &pluginTransport{next, semaphore.NewWeighted(maxWaiting)}
	}
	return next, nil
}

// pluginTransport sends requests by a transport that runs a plugin first.
type pluginTransport struct {
	next    http.RoundTripper
	waiting *semaphore.Weighted
}

// call is a request of a pluginTransport.
type call struct {
	limit   *time.Timer // ends the context, unless it is stopped
	giveUp  context.CancelCauseFunc
	waiting *semaphore.Weighted
	held    int64 // of waiting
}

type callKey struct{}

// RoundTrip implements http.RoundTripper. An abandoned request is not sent later, because its context has ended.
func (p *pluginTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, giveUp := context.WithCancelCause(req.Context()) // ends with the request, after its response was read
	limit := time.AfterFunc(credentialTimeout, func() { giveUp(errNoCredential) })
	defer limit.Stop()
	var resp *http.Response
	err, decided := error(nil), make(chan struct{})
	if p.waiting.Acquire(ctx, 1) == nil {
		c := &call{limit, giveUp, p.waiting, 1}
		go func() { // ends with the plugin
			defer func() { c.waiting.Release(c.held) }()
			resp, err = p.next.RoundTrip(req.Clone(context.WithValue(ctx, callKey{}, c)))
			select {
			case decided <- struct{}{}:
			case <-ctx.Done():
				if err == nil {
					resp.Body.Close() // after a switch of protocols, nothing else closes the connection
				}
			}
		}()
	}
	select {
	case <-decided:
		return resp, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// credentialTransport sends a request that has its credential.
type credentialTransport struct{ next http.RoundTripper }

func (t credentialTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	c, ok := req.Context().Value(callKey{}).(*call)
	if !ok {
		return t.next.RoundTrip(req)
	}
	if !c.limit.Stop() {
		c.giveUp(errNoCredential) // the timer has expired and ends the context, too
	}
	c.waiting.Release(c.held)
	c.held = 0
	resp, err := t.next.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized { // the plugin runs again
		c.limit.Reset(credentialTimeout)
		if c.waiting.TryAcquire(1) {
			c.held = 1
		}
	}
	return resp, err
}

// By WrappedRoundTripper, utilnet.CloseIdleConnectionsFor finds the connections.

func (p *pluginTransport) WrappedRoundTripper() http.RoundTripper    { return p.next }
func (t credentialTransport) WrappedRoundTripper() http.RoundTripper { return t.next }
