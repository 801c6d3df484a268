package kv_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
	"github.com/larder-io/larder/kv/kvtest"
)

// openBench opens an embedded store for a benchmark.
func openBench(b *testing.B) *kv.Etcd {
	b.Helper()
	store, err := embedded.New(embedded.Config{Dir: b.TempDir(), UnsafeNoFsync: true})
	if err != nil {
		b.Fatal(err)
	}
	kvtest.RunUntilEnd(b, store.Run)
	<-store.Ready()
	return store
}

func must[T any](b *testing.B) func(T, error) T {
	return func(v T, err error) T {
		if err != nil {
			b.Fatal(err)
		}
		return v
	}
}

// BenchmarkRevision reads the revision of a member in another process, over the connection for revisions and with
// etcd's client.
func BenchmarkRevision(b *testing.B) {
	member := kvtest.StartCluster(b, memberVariable, 1, nil)[0]
	for _, by := range []string{"own", "client"} {
		b.Run("by="+by, func(b *testing.B) {
			store, err := kv.NewExternal(kv.ExternalConfig{Endpoints: []string{member.Config.Client}})
			if err != nil {
				b.Fatal(err)
			}
			kvtest.RunUntilEnd(b, store.Run)
			<-store.Ready()
			for by == "own" && store.OwnReads() == 0 {
				must[int64](b)(store.Revision(b.Context()))
			}
			if by == "client" {
				store.WithoutOwnReads()
			}
			b.ReportAllocs()
			before := cpuTime(b)
			for b.Loop() {
				must[int64](b)(store.Revision(b.Context()))
			}
			b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpuTime returns the CPU time that this process has used.
func cpuTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkWrites measures 16 clients that write different keys to a member in another process, while one watch
// follows, as a server's does. It is an upper bound for the writes per second of a server with such an etcd. Writes
// go over the connection for writes, and through etcd's client.
func BenchmarkWrites(b *testing.B) {
	const clients = 16
	member := kvtest.StartCluster(b, memberVariable, 1, nil)[0]
	benchWrites := func(size int, by string) {
		b.Run(fmt.Sprintf("bytes=%d/by=%s", size, by), func(b *testing.B) {
			store, err := kv.NewExternal(kv.ExternalConfig{Endpoints: []string{member.Config.Client}})
			if err != nil {
				b.Fatal(err)
			}
			kvtest.RunUntilEnd(b, store.Run)
			<-store.Ready()
			benchSubscription(b, store)
			for own := store.OwnWrites(); own == store.OwnWrites(); {
				must[kv.WriteResult](b)(store.Delete(b.Context(), "/registry/none", 1))
			}
			if by == "client" {
				store.WithoutOwnWrites()
			}
			value := make([]byte, size)
			prefix := fmt.Sprintf("/registry/pods/%d-%d/", size, time.Now().UnixNano())
			var next atomic.Int64
			var workers sync.WaitGroup
			before, etcdBefore := cpuTime(b), cpuOf(b, member.PID())
			b.ResetTimer()
			for range clients {
				workers.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						if r, err := store.Put(b.Context(), prefix+strconv.FormatInt(i, 10), value, kv.PutOptions{}); err != nil || !r.Committed {
							b.Errorf("put: %+v, %v", r, err)
							return
						}
					}
				})
			}
			workers.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
			b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64((cpuOf(b, member.PID())-etcdBefore).Nanoseconds())/float64(b.N), "etcd-cpu-ns/op")
		})
	}
	for _, size := range []int{400, 1500, 6000} {
		for _, by := range []string{"own", "client"} {
			benchWrites(size, by)
		}
	}
}

// cpuOf returns the CPU time of another process, with a resolution of 10 ms.
func cpuOf(b *testing.B, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Skip(err) // not on Linux
	}
	const user, system, tick = 11, 12, 10 * time.Millisecond // of the fields after the name
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var sum time.Duration
	for _, field := range []int{user, system} {
		ticks, err := strconv.ParseInt(fields[field], 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(ticks) * tick
	}
	return sum
}

// BenchmarkWriteToApplied measures a write followed by a consistent read: put, get the revision, and wait until
// the owner has applied it.
func BenchmarkWriteToApplied(b *testing.B) {
	store := openBench(b)
	sub := benchSubscription(b, store)
	value := make([]byte, 5000)
	var revision int64
	b.ReportAllocs()
	for b.Loop() {
		result := must[kv.WriteResult](b)(store.Put(b.Context(), "/registry/pods/a", value, kv.PutOptions{IfRevision: revision}))
		revision = result.Revision
		if err := sub.Wait(b.Context(), must[int64](b)(store.Revision(b.Context()))); err != nil {
			b.Fatal(err)
		}
	}
}

// benchSubscription returns a subscription whose owner applies all batches immediately.
func benchSubscription(b *testing.B, store kv.Store) *kv.Subscription {
	tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry"})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	b.Cleanup(func() { cancel(); <-done; <-done })
	go func() { done <- tail.Run(ctx) }()
	if err := tail.Wait(ctx, 1); err != nil {
		b.Fatal(err)
	}
	sub := tail.Subscribe("/registry/pods/")
	page := must[kv.Page](b)(store.Range(ctx, kv.RangeOptions{Prefix: "/registry/pods/"}))
	sub.Loaded(page.Revision)
	go func() {
		for {
			batches, err := sub.Next(ctx)
			if err != nil {
				done <- nil
				return
			}
			sub.Applied(len(batches))
		}
	}()
	return sub
}

func BenchmarkFresh(b *testing.B) {
	sub := benchSubscription(b, kvtest.NewMemory())
	var sum atomic.Int64
	b.ReportAllocs()
	for b.Loop() {
		sum.Add(sub.Fresh())
	}
}

func BenchmarkWaitSatisfied(b *testing.B) {
	sub := benchSubscription(b, kvtest.NewMemory())
	b.ReportAllocs()
	for b.Loop() {
		if err := sub.Wait(b.Context(), 1); err != nil {
			b.Fatal(err)
		}
	}
}

// script is a Store whose watch delivers prepared responses.
type script struct {
	kv.Store
	responses chan kv.WatchResponse
}

func (s *script) Watch(context.Context, string, int64) <-chan kv.WatchResponse { return s.responses }

// BenchmarkTailDispatch measures one event from the watch to the owner, with 60 subscriptions.
func BenchmarkTailDispatch(b *testing.B) {
	store := &script{Store: kvtest.NewMemory(), responses: make(chan kv.WatchResponse, 64)}
	tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry"})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tail.Run(ctx) }()
	defer func() { cancel(); close(store.responses); <-done }()
	if err := tail.Wait(ctx, 1); err != nil {
		b.Fatal(err)
	}
	for i := range 59 {
		tail.Subscribe("/registry/kind" + strconv.Itoa(i) + "/").Loaded(1)
	}
	sub := tail.Subscribe("/registry/pods/")
	sub.Loaded(1)
	batch := kv.Batch{Events: []kv.Event{{Key: "/registry/pods/namespace/name", Value: make([]byte, 10), Kind: kv.Update}}}
	go func() {
		for revision := int64(2); revision < int64(b.N)+2; revision++ {
			batch.Revision = revision
			store.responses <- kv.WatchResponse{Batches: []kv.Batch{batch}, Progress: revision}
		}
	}()
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; {
		batches, err := sub.Next(ctx)
		if err != nil {
			b.Fatal(err)
		}
		sub.Applied(len(batches))
		n += len(batches)
	}
}

// BenchmarkReplay measures a start with past events: the time until all replayed revisions have been delivered.
func BenchmarkReplay(b *testing.B) {
	for _, revisions := range []int64{1_000, 10_000, 50_000} {
		b.Run(fmt.Sprintf("revisions=%d", revisions), func(b *testing.B) {
			store := openBench(b)
			value := make([]byte, 2000)
			for i := range revisions {
				key := fmt.Sprintf("/registry/pods/ns/%d", i%1000)
				values := map[string][]byte{key: value}
				must[int64](b)(store.PutAll(b.Context(), values))
			}
			for b.Loop() {
				replay(b, store, revisions)
			}
		})
	}
}

// replay begins at a past revision and delivers all events up to the current one.
func replay(b *testing.B, store kv.Store, revisions int64) {
	ctx, cancel := context.WithCancel(b.Context())
	tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: revisions})
	sub := tail.Subscribe("/registry/pods/")
	done := make(chan error, 1)
	go func() { done <- tail.Run(ctx) }()
	past, present, err := sub.Begin(ctx, 0)
	if err != nil || past != present-revisions {
		b.Fatal(past, present, err)
	}
	sub.Loaded(past)
	for n := revisions; n > 0; {
		batches, err := sub.Next(ctx)
		if err != nil {
			b.Fatal(err)
		}
		n -= int64(len(batches))
		sub.Applied(len(batches))
	}
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
