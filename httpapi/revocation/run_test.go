package revocation

import (
	"context"
	"crypto/sha256"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/streams"
)

// TestStreamsEndInTime checks the guarantee of the package, for changes at different times between two rounds. Either a
// provider moves jane to another group without a report, and a webhook then denies her watch. Or a counter reports that
// this process denies it. A client that does not read is disconnected two rounds later.
func TestStreamsEndInTime(t *testing.T) {
	for _, remote := range []bool{true, false} {
		for _, reads := range []bool{true, false} {
			for after := time.Duration(0); after < 3*time.Second; after += 300 * time.Millisecond {
				synctest.Test(t, func(t *testing.T) {
					if took := timeOfRevocation(t, remote, reads, after); took > 5*time.Second && (reads || took > 8*time.Second) {
						t.Errorf("remote %t, reads %t: the stream ended %v after the change, which came after %v", remote, reads, took, after)
					}
				})
			}
		}
	}
}

// timeOfRevocation returns how long after the change a stream ends.
func timeOfRevocation(t *testing.T, remote, reads bool, after time.Duration) time.Duration {
	var changed atomic.Bool
	r := newRights(&fakeAccess{remote: remote})
	who := func() user.Info {
		if changed.Load() {
			return &user.DefaultInfo{Name: "jane", Groups: []string{"left"}}
		}
		return jane
	}
	decide := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if len(a.GetUser().GetGroups()) > 0 || !remote && changed.Load() {
			return authorizer.DecisionDeny, "", nil
		}
		return authorizer.DecisionAllow, "", nil
	})
	config := r.config.Revocation
	r.config.Authorizer = decide
	config.AuthorizerChanges = func() uint64 {
		if !remote && changed.Load() {
			return 1
		}
		return 0
	}
	if remote {
		config.Authenticator = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: who()}, true, nil
		})
		r.decideRemotely()
	}
	c, held := janesWatch()
	c.ties.Remote = remote
	r.enter(c, [sha256.Size]byte{}, "", held)

	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { r.Run(ctx) })
	server, client := net.Pipe()
	defer client.Close()
	if reads {
		running.Go(func() { _, _ = io.Copy(io.Discard, client) })
	}
	ended := make(chan struct{})
	r.config.Streams.Serve(ctx, exchange.Hijacked{Conn: server}, &streams.HandlerStream{
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }),
		Request: httptest.NewRequest("GET", "/", nil), Header: make(http.Header), Right: held,
		Context: func(ctx context.Context) context.Context { return ctx }, Leave: func() { close(ended) },
	})
	time.Sleep(10*time.Second + after)
	if held.Lost() {
		t.Error("the right is lost before the change")
	}
	changed.Store(true)
	since := time.Now()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		client.Close()
	}
	if n := testutil.ToFloat64(r.ended.WithLabelValues(lostPermission)); n != 1 {
		t.Errorf("%v streams are counted as ended, want 1", n)
	}
	return time.Since(since)
}
