package storage

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/sharding"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/watch"
)

// WatchRequest is a request to watch a scope.
type WatchRequest struct {
	Scope
	ResourceVersion   string
	SendInitialEvents *bool
	Bookmarks         bool
	Label             labels.Selector
	Field             fields.Selector
	Shard             sharding.Selector // nil is everything

	// Past, if not 0, is the revision of the initial objects. The cache's log must reach it.
	Past int64

	// Wake is [watch.Options].Wake.
	Wake func()
}

// StreamError is the error of a watch that could not start although its request is valid. It
// is sent in the stream.
type StreamError struct{ Err error }

// Error implements error.
func (e *StreamError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *StreamError) Unwrap() error { return e.Err }

// fewEvents limits the events of a watch for which [Resource.Resumes] holds.
const fewEvents = 256

// Resumes reports whether a watch of changes after resourceVersion starts without a request to the store, and with at
// most 256 changes of the resource.
func (r *Resource) Resumes(resourceVersion string) bool {
	revision, err := r.codec.Versioner().ParseResourceVersion(resourceVersion)
	if err != nil || revision == 0 || r.Cache == nil || !r.hasReached(revision) {
		return false
	}
	next, err := r.Cache.Log().After(int64(revision))
	return err == nil && r.Cache.Log().Next()-next <= fewEvents
}

// Watch opens a watcher. If SendInitialEvents is nil, the caller must omit the bookmark that ends the initial events.
// The caller sends a [StreamError] as an ERROR event, and any other error as a response. The rules are those of
// apiserver pkg/storage/cacher/cacher.go, Watch.
func (r *Resource) Watch(ctx context.Context, q WatchRequest) (*watch.Watcher, error) {
	if err := q.Scope.check(r.layout); err != nil {
		return nil, err
	}
	revision, err := r.codec.Versioner().ParseResourceVersion(q.ResourceVersion)
	if err != nil {
		return nil, err
	}
	if r.Cache == nil {
		return nil, apierrors.NewMethodNotSupported(r.GroupResource, "watch")
	}
	if err := r.goneError(); err != nil {
		return nil, err
	}
	if !r.Cache.Ready() {
		return nil, r.notReady()
	}
	for {
		history := r.store.Replacements()
		w, err := r.openWatch(ctx, q, int64(revision))
		if r.store.Replacements() == history || ctx.Err() != nil {
			return w, err
		}
		if w != nil { // it may follow the new history from a revision of the previous one
			w.Close()
		}
	}
}

// openWatch opens a watcher. If the store is replaced meanwhile, the caller must discard the watcher.
func (r *Resource) openWatch(ctx context.Context, q WatchRequest, revision int64) (*watch.Watcher, error) {
	if err := r.awaitCurrent(ctx); err != nil {
		return nil, err
	}
	shard, err := shardOf(q.Shard)
	if err != nil {
		return nil, err
	}
	options := watch.Options{
		Namespace: q.Namespace, Name: q.Name, Label: q.Label, Field: q.Field, Shard: shard, Bookmarks: q.Bookmarks, Wake: q.Wake,
	}
	if err := r.watchStart(ctx, q, revision, &options); err != nil {
		return nil, &StreamError{err}
	}
	addSpanEvent(ctx, "watchCache fresh enough")
	w, err := r.Hub.Watch(options)
	if err != nil {
		return nil, &StreamError{watchError(err)}
	}
	return w, nil
}

// watchStart decides where a watch begins: with the present objects or after a
// revision.
func (r *Resource) watchStart(ctx context.Context, q WatchRequest, revision int64, options *watch.Options) error {
	initial := q.SendInitialEvents != nil && *q.SendInitialEvents
	if q.ResourceVersion == "" && q.SendInitialEvents != nil {
		now, err := r.store.Revision(ctx)
		if err != nil {
			return etcdError(err)
		}
		revision = now
	}
	if initial {
		least, err := uint64(max(revision, 0)), error(nil)
		if r.uncached() {
			_, err = r.awaitNow(ctx, least, 1)
		} else {
			err = r.awaitNotOlderThan(ctx, least)
		}
		if err != nil {
			return err
		}
	}
	snapshot := r.Cache.Snapshot()
	if initial && q.Past > 0 {
		if past, err := r.Cache.At(q.Past); err == nil { // otherwise the log has just dropped it
			snapshot = past
		}
	}
	switch {
	case initial:
		options.Initial = &snapshot
	case revision > 0:
		options.After = revision
		return r.checkResume(ctx, revision, snapshot.Revision())
	case q.SendInitialEvents == nil: // a legacy watch: the objects, then changes
		options.Initial = &snapshot
	default:
		options.After = snapshot.Revision()
	}
	return nil
}

// checkResume fails if a watch cannot resume after a revision. known is the revision that the cache has reached.
//
// A server can have sent a revision that the store has not reached only if the store was replaced since. The watch must
// not wait for that revision, because it will have other contents. An ambiguous revision that this server has not
// issued may also be of the lost history.
func (r *Resource) checkResume(ctx context.Context, revision, known int64) error {
	if revision > known {
		current, err := r.store.Revision(ctx)
		switch {
		case err != nil:
			return etcdError(err)
		case revision > current:
			return lostRevision(uint64(revision), uint64(current))
		}
	}
	if r.issued.replaced(revision) {
		return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", revision, r.store.ReplacedRevision()+1))
	}
	return nil
}

// watchError converts the error of a watch to the one that clients expect.
func watchError(err error) error {
	if errors.Is(err, watch.ErrReplaced) {
		return apierrors.NewResourceExpired("the store was replaced, and has no history of earlier resource versions")
	}
	var old cache.ErrTooOld
	if errors.As(err, &old) {
		return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", old.Requested, old.Oldest))
	}
	return listError(err)
}

// WatchStatus returns the Status in an ERROR event for err: the error in a [StreamError], or the error that ended a
// [watch.Watcher].
func WatchStatus(err error) *metav1.Status {
	var corrupt *cache.CorruptError
	if errors.As(err, &corrupt) && corrupt.Deleted { // apiserver pkg/storage/etcd3/watcher.go
		return &metav1.Status{
			Status:  metav1.StatusFailure,
			Message: fmt.Sprintf("saw a DELETED event, but object data is corrupt - %v", corrupt.Object.Err()),
			Reason:  metav1.StatusReasonStoreReadError,
			Code:    http.StatusInternalServerError,
		}
	}
	err = watchError(err)
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		s := status.Status()
		return &s
	}
	return &metav1.Status{
		Status:  metav1.StatusFailure,
		Message: err.Error(),
		Reason:  metav1.StatusReasonInternalError,
		Code:    http.StatusInternalServerError,
	}
}
