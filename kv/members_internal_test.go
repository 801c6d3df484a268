package kv

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestProgressIsSoundFromSomeVersionsOn(t *testing.T) {
	for version, want := range map[string]bool{
		"3.3.27": false, "3.4.0": false, "3.4.30": false, "3.4.31": true, "3.4.99": true,
		"3.5.0": false, "3.5.12": false, "3.5.13-rc.0": false, "3.5.13": true, "3.5.13+suffix": true,
		"3.6.0": true, "3.7.3": true, "4.0.0": true, "": false, "v3.6.0": false, "3.6": false, "not decided": false,
	} {
		if got := hasReliableProgress(version); got != want {
			t.Errorf("%q: sound %v, want %v", version, got, want)
		}
	}
}

// TestOnlyKnownMembersAreTrusted checks endpoints that do not respond, and endpoints that belong to several members.
// The progress of a stream is trusted only if the version of its member is known.
func TestOnlyKnownMembersAreTrusted(t *testing.T) {
	answer := func(member uint64, version string) *clientv3.StatusResponse {
		return (*clientv3.StatusResponse)(&etcdserverpb.StatusResponse{Header: &etcdserverpb.ResponseHeader{MemberId: member}, Version: version})
	}
	for _, c := range []struct {
		name        string
		answers     map[string][]*clientv3.StatusResponse // by endpoint, in order; nil fails
		member      uint64
		sound, wide bool
	}{
		{"new", map[string][]*clientv3.StatusResponse{"a": {answer(1, "3.6.0")}}, 1, true, false},
		{"old", map[string][]*clientv3.StatusResponse{"a": {answer(1, "3.5.12")}}, 1, false, true},
		{"new beside old", map[string][]*clientv3.StatusResponse{"a": {answer(1, "3.6.0")}, "b": {answer(2, "3.5.12")}}, 1, true, false},
		{"old beside new", map[string][]*clientv3.StatusResponse{"a": {answer(1, "3.6.0")}, "b": {answer(2, "3.5.12")}}, 2, false, true},
		{"new beside silent", map[string][]*clientv3.StatusResponse{"a": {answer(1, "3.6.0")}, "b": {nil}}, 1, true, false},
		{"silent", map[string][]*clientv3.StatusResponse{"a": {answer(1, "3.6.0")}, "b": {nil}}, 2, false, true},
		{"second behind one endpoint", map[string][]*clientv3.StatusResponse{"a": {answer(1, "3.6.0"), answer(2, "3.6.0")}}, 2, true, false},
		{"nowhere", map[string][]*clientv3.StatusResponse{"a": {answer(1, "3.6.0")}}, 7, false, true},
		{"not etcd", map[string][]*clientv3.StatusResponse{"a": {answer(0, "3.6.11")}}, 0, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := make(map[string]chan int)
			var endpoints []string
			for endpoint := range c.answers {
				endpoints = append(endpoints, endpoint)
				asked[endpoint] = make(chan int, 1)
				asked[endpoint] <- 0
			}
			m := &members{
				endpoints: func() []string { return endpoints },
				logger:    slog.New(slog.DiscardHandler),
				status: func(_ context.Context, endpoint string) (*clientv3.StatusResponse, error) {
					n := <-asked[endpoint]
					asked[endpoint] <- n + 1
					answers := c.answers[endpoint]
					if answer := answers[n%len(answers)]; answer != nil {
						return answer, nil
					}
					return nil, errors.New("silence")
				},
			}
			if sound := m.identify(t.Context(), c.member); sound != c.sound || m.allKeys.Load() != c.wide {
				t.Errorf("sound %v, wide %v; want %v, %v", sound, m.allKeys.Load(), c.sound, c.wide)
			}
		})
	}
}

// TestIdentifyMembersOnce checks that a stream that was opened before the members were last asked does not ask
// again, and that a later one does.
func TestIdentifyMembersOnce(t *testing.T) {
	questions := 0
	m := &members{
		endpoints: func() []string { return []string{"a"} },
		logger:    slog.New(slog.DiscardHandler),
		status: func(context.Context, string) (*clientv3.StatusResponse, error) {
			questions++
			return (*clientv3.StatusResponse)(&etcdserverpb.StatusResponse{Header: &etcdserverpb.ResponseHeader{MemberId: 1}, Version: "3.6.0"}), nil
		},
	}
	opened := time.Now()
	for want, at := range []time.Time{opened, opened, opened} {
		if version, known := m.version(t.Context(), 1, at); !known || version != "3.6.0" || questions != 1 {
			t.Errorf("request %d: %q, %v, requested %d times", want, version, known, questions)
		}
	}
	if _, known := m.version(t.Context(), 1, time.Now().Add(time.Nanosecond)); !known || questions != 2 {
		t.Errorf("a later stream: known %v, requested %d times", known, questions)
	}
}

// TestSilentEndpointsDoNotDelayOthers checks that an endpoint that does not answer delays only the streams of its own
// members, which are identified once it responds again.
func TestSilentEndpointsDoNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		answers, swallows := uint64(0), true
		m := &members{
			endpoints: func() []string { return []string{"silent", "many"} },
			logger:    slog.New(slog.DiscardHandler),
			status: func(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error) {
				mu.Lock()
				member, silent := uint64(7), swallows
				if endpoint == "many" { // two members, by turns
					answers++
					member, silent = 1+answers%2, false
				}
				mu.Unlock()
				if silent {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				time.Sleep(time.Millisecond)
				return (*clientv3.StatusResponse)(&etcdserverpb.StatusResponse{Header: &etcdserverpb.ResponseHeader{MemberId: member}, Version: "3.6.0"}), nil
			},
		}
		identify := func(member uint64, want bool, patience time.Duration) {
			began := time.Now()
			if sound := m.identify(t.Context(), member); sound != want {
				t.Errorf("member %d: sound %v, want %v", member, sound, want)
			}
			if took := time.Since(began); took > patience {
				t.Errorf("member %d: known after %v, want %v", member, took, patience)
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
		mu.Lock()
		swallows = false
		mu.Unlock()
		identify(7, true, quick)
	})
}
