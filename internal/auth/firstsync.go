package auth

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// ErrNotSynced says that an authorizer has not loaded its objects yet, so its decision is not
// known. The client should retry.
var ErrNotSynced = errors.New("auth: objects that authorization needs are not loaded yet")

// firstSync reports whether authorizers have loaded their objects for the first time.
type firstSync struct {
	ended <-chan struct{}   // Config.Ended; if it is nil, nothing waits
	loads []<-chan struct{} // each is closed once a part is loaded
	done  atomic.Bool       // all of loads were seen closed
}

// add makes f wait until load is closed, unless nothing waits.
func (f *firstSync) add(load <-chan struct{}) {
	if f.ended != nil {
		f.loads = append(f.loads, load)
	}
}

// synced reports whether everything is loaded. After that it costs one atomic load.
func (f *firstSync) synced() bool {
	if f.done.Load() {
		return true
	}
	for _, load := range f.loads {
		select {
		case <-load:
		default:
			return false
		}
	}
	f.done.Store(true)
	return true
}

// wait blocks until everything is loaded. It fails with ErrNotSynced if ctx or the server ends
// first.
func (f *firstSync) wait(ctx context.Context) error {
	for _, load := range f.loads {
		select {
		case <-load:
		case <-ctx.Done():
		case <-f.ended:
		}
	}
	if !f.synced() {
		return ErrNotSynced
	}
	return nil
}

// isHealthProbe reports whether a is a health probe, which must not wait.
func isHealthProbe(a authorizer.Attributes) bool {
	if a.IsResourceRequest() {
		return false
	}
	root, _, _ := strings.Cut(strings.TrimPrefix(a.GetPath(), "/"), "/")
	return root == "livez" || root == "readyz" || root == "healthz"
}
