package storage

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/wire"
)

// ListRequest is a request for the objects of a scope.
type ListRequest struct {
	Scope
	ResourceVersion string
	Match           metav1.ResourceVersionMatch
	Label           labels.Selector
	Field           fields.Selector
	Shard           sharding.Selector // nil is everything
	Limit           int64
	Continue        string

	// Past, unless it is 0, is the revision of the answer, though ResourceVersion allows later ones. The
	// cache's log reaches it.
	Past int64

	// Waited, unless it is nil, is increased by the time spent waiting for the cache and the store.
	Waited *time.Duration

	shard *cache.Shard // Shard as the cache has it
	ended bool         // the storage key that was asked for ends in "/"
}

// waitedSince adds the time since began to Waited.
func (q *ListRequest) waitedSince(began time.Time) {
	if q.Waited != nil {
		*q.Waited += time.Since(began)
	}
}

// matches reports whether o, which is not corrupt, is in the shard and has the labels and fields.
func (q *ListRequest) matches(o *cache.Object) bool {
	return (q.shard == nil || q.shard.Matches(o)) && q.Label.Matches(o.Labels()) && q.Field.Matches(o.Fields())
}

// withSelectors returns q with selectors that select everything in place of nil.
func (q ListRequest) withSelectors() ListRequest {
	if q.Label == nil {
		q.Label = labels.Everything()
	}
	if q.Field == nil {
		q.Field = fields.Everything()
	}
	return q
}

// Listing is the answer to a ListRequest.
type Listing struct {
	Objects []*cache.Object
	Meta    wire.ListMeta

	Index   string // that narrowed the search, "" if none
	Scanned int    // objects looked at

	corrupt corruptList // that a read of the store has found
}

// options returns q as upstream's storage.ListOptions.
func (q ListRequest) options() storage.ListOptions {
	return storage.ListOptions{
		ResourceVersion:      q.ResourceVersion,
		ResourceVersionMatch: q.Match,
		Predicate:            storage.SelectionPredicate{Label: q.Label, Field: q.Field, Limit: q.Limit, Continue: q.Continue},
		Recursive:            !q.single(),
	}
}

// listing is a ListRequest to which upstream's rules were applied.
type listing struct {
	q      ListRequest
	prefix string // of full keys
	exact  int64  // revision to read at; 0 is a newest one
	from   string // full key to begin at, "" for the first
}

// setContinue sets the token for the next page. next is the full key at which that page begins; remaining
// counts the objects from there on.
func (out *Listing) setContinue(read listing, next string, remaining int64) error {
	token, err := storage.EncodeContinue(next, read.prefix, out.Meta.Revision)
	if err != nil {
		return err
	}
	out.Meta.Continue = token
	if read.q.Label.Empty() && read.q.Field.Empty() {
		out.Meta.Remaining = &remaining
	}
	return nil
}
