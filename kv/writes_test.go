package kv_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/stats"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// awaitOwnWrite waits until a write was sent without etcd's client.
func awaitOwnWrite(t *testing.T, store *kv.Etcd) {
	t.Helper()
	before := store.OwnWrites()
	proctest.Eventually(t, "a write is sent without etcd's client", func() error {
		_, err := store.Delete(t.Context(), "/registry/none", 1)
		if err == nil && store.OwnWrites() == before {
			err = errors.New("it was sent by etcd's client")
		}
		return err
	})
}

// TestWritesSurviveRestarts has writers increment numbers, each write conditional on the one before, while the member is
// paused, killed and restarted. Acknowledged writes must not be lost, and none may be made twice. After a write without a
// response the key must have its old or its new value.
func TestWritesSurviveRestarts(t *testing.T) {
	t.Parallel()
	member := startCluster(t, 1, nil)[0]
	store := openExternal(t, kv.ExternalConfig{Endpoints: kvtest.URLs([]*kvtest.Member{member})})
	awaitOwnWrite(t, store)
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	var written, doubtful atomic.Int64
	for i := range 8 {
		writers.Go(func() { countUp(t, ctx, store, fmt.Sprintf("/registry/count/%d", i), &written, &doubtful) })
	}
	further := func() {
		t.Helper()
		before := written.Load()
		proctest.Eventually(t, "writers get on", func() error {
			if now := written.Load(); now < before+100 {
				return fmt.Errorf("%d writes", now-before)
			}
			return nil
		})
	}
	further()
	if err := member.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "a write fails because its context ends", func() error {
		if doubtful.Load() == 0 {
			return errors.New("none has failed")
		}
		return nil
	})
	if err := member.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	further()
	for range 3 {
		member.Kill()
		if err := member.Start(); err != nil {
			t.Fatal(err)
		}
		further()
	}
	cancel()
	writers.Wait()
	awaitOwnWrite(t, store)
	t.Logf("%d writes, %d without a response, %d sent without etcd's client", written.Load(), doubtful.Load(), store.OwnWrites())
}

// countUp writes increasing numbers until ctx ends.
func countUp(t *testing.T, ctx context.Context, store *kv.Etcd, key string, written, doubtful *atomic.Int64) {
	var revision int64
	value, doubt := []byte("0"), false // doubt: an earlier write of the number had no response
	for n := 1; ctx.Err() == nil; n++ {
		next := fmt.Append(nil, n)
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		result, err := store.Put(bounded, key, next, kv.PutOptions{IfRevision: revision})
		cancel()
		if err == nil {
			if !result.Committed && doubt && bytes.Equal(result.Current.Value, next) { // made late
				result.Revision = result.Current.Revision
			} else if !result.Committed {
				t.Errorf("%s: %d was not written over %s: %+v", key, n, value, result)
				return
			}
			value, revision, doubt = next, result.Revision, false
			written.Add(1)
			continue
		}
		doubtful.Add(1)
		doubt = true
		item, found, _, err := store.Get(context.WithoutCancel(ctx), key)
		if err != nil {
			t.Errorf("%s: %v", key, err)
			return
		}
		switch {
		case found && bytes.Equal(item.Value, next):
		case item.Revision == revision && (!found || bytes.Equal(item.Value, value)):
			n--
		default:
			t.Errorf("%s is %s, want %s or %s", key, item.Value, value, next)
			return
		}
		if value, revision = item.Value, item.Revision; !found {
			value = []byte("0")
		}
	}
}

// TestWritesAreSentToAnotherMember kills one member after the other.
func TestWritesAreSentToAnotherMember(t *testing.T) {
	t.Parallel()
	members := startCluster(t, 3, nil)
	store := openExternal(t, kv.ExternalConfig{Endpoints: kvtest.URLs(members)})
	for _, m := range members {
		awaitOwnWrite(t, store)
		m.Kill()
		proctest.Eventually(t, "a write reaches another member", func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			before := store.OwnWrites()
			_, err := store.Delete(ctx, "/registry/none", 1)
			if err == nil && store.OwnWrites() == before {
				err = errors.New("it was sent by etcd's client")
			}
			return err
		})
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
		m.AwaitReady(t)
	}
}

// TestLargeValuesAreWrittenAndRead checks values of all sizes, whether or not they are sent by etcd's client.
func TestLargeValuesAreWrittenAndRead(t *testing.T) {
	member := startCluster(t, 1, nil)[0]
	store := openExternal(t, kv.ExternalConfig{Endpoints: kvtest.URLs([]*kvtest.Member{member})})
	awaitOwnWrite(t, store)
	for _, size := range []int{0, 1, 16<<10 - 1, 16 << 10, 60 << 10, 70_000, 1 << 20} {
		key := fmt.Sprintf("/registry/large/%d", size)
		value := bytes.Repeat([]byte{byte(size)}, size)
		created, err := store.Put(t.Context(), key, value, kv.PutOptions{})
		if err != nil || !created.Committed {
			t.Fatalf("%d bytes: %+v, %v", size, created, err)
		}
		again, err := store.Put(t.Context(), key, value, kv.PutOptions{})
		if err != nil || again.Committed || !bytes.Equal(again.Current.Value, value) || again.Current.Revision != created.Revision {
			t.Errorf("create of an existing key with %d bytes: committed %t, %d bytes, error %v", size, again.Committed, len(again.Current.Value), err)
		}
		deleted, err := store.Delete(t.Context(), key, created.Revision)
		if err != nil || !deleted.Committed || !bytes.Equal(deleted.Current.Value, value) {
			t.Errorf("deletion of %d bytes: committed %t, %d bytes, error %v", size, deleted.Committed, len(deleted.Current.Value), err)
		}
	}
	for _, size := range []int{1600 << 10, 3 << 20} { // above the limits of etcd and of its client
		if _, err := store.Put(t.Context(), "/registry/large/too", make([]byte, size), kv.PutOptions{}); err == nil {
			t.Errorf("a value of %d bytes was written, want an error", size)
		}
	}
	if result, err := store.Put(t.Context(), "/registry/large/last", nil, kv.PutOptions{}); err != nil || !result.Committed {
		t.Errorf("a write afterwards: %+v, %v", result, err)
	}
}

// TestErrorsEqualThoseOfEtcdsClient checks that writes return the same errors, including those of contexts, with and
// without etcd's client.
func TestErrorsEqualThoseOfEtcdsClient(t *testing.T) {
	member := startCluster(t, 1, nil)[0]
	for name, cfg := range map[string]kv.ExternalConfig{"own": {}, "client": {Stats: ignored{}}} {
		t.Run(name, func(t *testing.T) {
			cfg.Endpoints = kvtest.URLs([]*kvtest.Member{member})
			store := openExternal(t, cfg)
			if name == "own" {
				awaitOwnWrite(t, store)
			}
			if _, err := store.Put(t.Context(), "", nil, kv.PutOptions{}); !errors.Is(err, rpctypes.ErrEmptyKey) {
				t.Errorf("empty key: got error %v, want ErrEmptyKey", err)
			}
			if err := store.PutLeased(t.Context(), "/registry/leased", 17); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
				t.Errorf("unknown lease: got error %v, want ErrLeaseNotFound", err)
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := store.Put(ended, "/registry/a", nil, kv.PutOptions{}); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled context: got error %v, want Canceled", err)
			}
			pause(t, member, store)
			bounded, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := store.Put(bounded, "/registry/a", nil, kv.PutOptions{}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("no response: got error %v, want DeadlineExceeded", err)
			}
			if err := member.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// ignored is a stats.Handler that does nothing. A store with one sends all writes by etcd's client.
type ignored struct{ stats.Handler }

// TagRPC returns ctx.
func (ignored) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC does nothing.
func (ignored) HandleRPC(context.Context, stats.RPCStats) {}

// TagConn returns ctx.
func (ignored) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing.
func (ignored) HandleConn(context.Context, stats.ConnStats) {}
