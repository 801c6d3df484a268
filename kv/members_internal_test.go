package kv

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestVersionsWithReliableProgress(t *testing.T) {
	for version, want := range map[string]bool{
		"3.3.27": false, "3.4.0": false, "3.4.30": false, "3.4.31": true, "3.4.99": true,
		"3.5.0": false, "3.5.12": false, "3.5.13-rc.0": false, "3.5.13": true, "3.5.13+suffix": true,
		"3.6.0": true, "3.7.3": true, "4.0.0": true, "": false, "v3.6.0": false, "3.6": false, "not decided": false,
	} {
		if got := hasReliableProgress(version); got != want {
			t.Errorf("hasReliableProgress(%q) = %v, want %v", version, got, want)
		}
	}
}

// TestProgressIsTrustedOnlyOfKnownMembers checks endpoints that do not respond, and endpoints that belong to several
// members. The progress of a stream is trusted only if the version of its member is known.
func TestProgressIsTrustedOnlyOfKnownMembers(t *testing.T) {
	status := func(member uint64, version string) *clientv3.StatusResponse {
		return (*clientv3.StatusResponse)(&etcdserverpb.StatusResponse{Header: &etcdserverpb.ResponseHeader{MemberId: member}, Version: version})
	}
	for _, c := range []struct {
		name             string
		responses        map[string][]*clientv3.StatusResponse // by endpoint, in order; nil fails
		member           uint64
		trusted, allKeys bool
	}{
		{"new", map[string][]*clientv3.StatusResponse{"a": {status(1, "3.6.0")}}, 1, true, false},
		{"old", map[string][]*clientv3.StatusResponse{"a": {status(1, "3.5.12")}}, 1, false, true},
		{"new beside old", map[string][]*clientv3.StatusResponse{"a": {status(1, "3.6.0")}, "b": {status(2, "3.5.12")}}, 1, true, false},
		{"old beside new", map[string][]*clientv3.StatusResponse{"a": {status(1, "3.6.0")}, "b": {status(2, "3.5.12")}}, 2, false, true},
		{"new beside silent", map[string][]*clientv3.StatusResponse{"a": {status(1, "3.6.0")}, "b": {nil}}, 1, true, false},
		{"silent", map[string][]*clientv3.StatusResponse{"a": {status(1, "3.6.0")}, "b": {nil}}, 2, false, true},
		{"second behind one endpoint", map[string][]*clientv3.StatusResponse{"a": {status(1, "3.6.0"), status(2, "3.6.0")}}, 2, true, false},
		{"unknown", map[string][]*clientv3.StatusResponse{"a": {status(1, "3.6.0")}}, 7, false, true},
		{"not etcd", map[string][]*clientv3.StatusResponse{"a": {status(0, "3.6.11")}}, 0, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			requests := make(map[string]chan int)
			var endpoints []string
			for endpoint := range c.responses {
				endpoints = append(endpoints, endpoint)
				requests[endpoint] = make(chan int, 1)
				requests[endpoint] <- 0
			}
			m := &members{
				endpoints: func() []string { return endpoints },
				logger:    slog.New(slog.DiscardHandler),
				status: func(_ context.Context, endpoint string) (*clientv3.StatusResponse, error) {
					n := <-requests[endpoint]
					requests[endpoint] <- n + 1
					responses := c.responses[endpoint]
					if response := responses[n%len(responses)]; response != nil {
						return response, nil
					}
					return nil, errors.New("no response")
				},
			}
			if trusted := m.identify(t.Context(), c.member); trusted != c.trusted || m.allKeys.Load() != c.allKeys {
				t.Errorf("trusted %v, allKeys %v; want %v, %v", trusted, m.allKeys.Load(), c.trusted, c.allKeys)
			}
		})
	}
}

// TestSilentEndpointsDoNotDelayOthers checks that an endpoint that does not respond delays only the streams of its own
// members, which are identified once it responds again.
func TestSilentEndpointsDoNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var responds atomic.Bool // the silent endpoint
		m := &members{
			endpoints: func() []string { return []string{"silent", "many"} },
			logger:    slog.New(slog.DiscardHandler),
			status: func(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error) {
				member := uint64(7)
				switch {
				case endpoint == "many": // two members take turns of a millisecond
					member = 1 + uint64(time.Now().UnixMilli())%2
				case !responds.Load():
					<-ctx.Done()
					return nil, ctx.Err()
				}
				time.Sleep(time.Millisecond)
				return (*clientv3.StatusResponse)(&etcdserverpb.StatusResponse{Header: &etcdserverpb.ResponseHeader{MemberId: member}, Version: "3.6.0"}), nil
			},
		}
		identify := func(member uint64, want bool, patience time.Duration) {
			began := time.Now()
			if trusted := m.identify(t.Context(), member); trusted != want {
				t.Errorf("member %d: trusted %v, want %v", member, trusted, want)
			}
			if took := time.Since(began); took > patience {
				t.Errorf("member %d: identified after %v, want at most %v", member, took, patience)
			}
		}
		quick := 20 * time.Millisecond
		identify(1, true, quick)
		if t.Failed() { // a goroutine that waits for a lock stops the clock
			return
		}
		var waiting sync.WaitGroup
		waiting.Go(func() { identify(7, false, statusRounds*statusTimeout+quick) })
		synctest.Wait()
		identify(2, true, quick)
		waiting.Wait()
		for range 3 {
			identify(1, true, quick)
			identify(2, true, quick)
		}
		responds.Store(true)
		identify(7, true, quick)
	})
}
