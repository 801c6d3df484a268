package kv

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// How long and for how many keys a lease is reused
// (apiserver pkg/storage/etcd3/lease_manager.go).
const (
	leaseReusePercent = 5
	leaseReuseMax     = 60 // seconds, the default
	leaseMaxObjects   = 1000

	// grantFirst is the timeout of the first attempt to get a lease. The next attempt goes to another member if there
	// is one, and may take twice as long, up to slowTimeout. If the first attempt succeeds later, its lease expires
	// unused.
	grantFirst = time.Second
)

// leaseManager returns leases for keys. It reuses the last lease while it fits, because granting one is a write. So a
// key may live longer than requested, by up to the reuse window.
type leaseManager struct {
	retired  func(objects int64) // may be nil
	longest  int64               // limit of the reuse window, in seconds
	granting chan struct{}       // has an element while a lease is being granted

	mu      sync.Mutex
	last    clientv3.LeaseID
	history uint64 // of the last lease: in another history its id may name another lease
	expires time.Time
	objects int64 // keys attached to the last lease
}

func newLeaseManager(retired func(objects int64)) *leaseManager {
	return &leaseManager{retired: retired, longest: leaseReuseMax, granting: make(chan struct{}, 1)}
}

// lease returns a lease of a history that lasts at least atLeast, rounded up to whole seconds, from now. If a lease
// that can be reused must be granted, one caller requests it, and the others wait and share it.
func (l *leaseManager) lease(ctx context.Context, client clientv3.Lease, atLeast time.Duration, history uint64) (clientv3.LeaseID, error) {
	ttl := int64((atLeast + time.Second - 1) / time.Second)
	if lease, ok := l.reuse(ttl, history); ok {
		return lease, nil
	}
	window := l.window(ttl)
	if window == 0 && l.longest > 0 { // for one key: do not replace the shared lease
		return grant(ctx, client, ttl)
	}
	select {
	case l.granting <- struct{}{}:
		defer func() { <-l.granting }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if lease, ok := l.reuse(ttl, history); ok {
		return lease, nil
	}
	now := time.Now()
	granted := ttl + window
	lease, err := grant(ctx, client, granted)
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.retired != nil && l.objects > 0 {
		l.retired(l.objects)
	}
	l.last, l.history, l.objects = lease, history, 1
	l.expires = now.Add(time.Duration(granted) * time.Second)
	return l.last, nil
}

// grant requests a lease until a member responds or ctx ends.
func grant(ctx context.Context, client clientv3.Lease, ttl int64) (clientv3.LeaseID, error) {
	for timeout := grantFirst; ; timeout = min(2*timeout, slowTimeout) {
		attempt, cancel := context.WithTimeout(ctx, timeout)
		resp, err := client.Grant(attempt, ttl)
		hung := attempt.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			return resp.ID, nil
		case !hung:
			return 0, err
		}
	}
}

// reuse returns the last lease again if it outlives ttl, but not by more than the reuse window, and has room.
func (l *leaseManager) reuse(ttl int64, history uint64) (clientv3.LeaseID, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	earliest := time.Now().Add(time.Duration(ttl) * time.Second)
	latest := earliest.Add(time.Duration(l.window(ttl)) * time.Second)
	if l.history != history || !earliest.Before(l.expires) || !latest.After(l.expires) || l.objects >= leaseMaxObjects {
		return 0, false
	}
	l.objects++
	return l.last, true
}

// discard ensures that the lease is not reused.
func (l *leaseManager) discard(lease clientv3.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == lease {
		l.expires = time.Time{}
	}
}

// window returns for how many seconds a lease for ttl is reused.
func (l *leaseManager) window(ttl int64) int64 {
	return min(ttl*leaseReusePercent/100, l.longest)
}
