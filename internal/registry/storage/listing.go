package storage

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/wire"
	"github.com/larder-io/larder/kv"
)

// ListRequest asks for the objects of a scope.
type ListRequest struct {
	Scope
	ResourceVersion string
	Match           metav1.ResourceVersionMatch
	Label           labels.Selector
	Field           fields.Selector
	Limit           int64
	Continue        string

	ended bool // the storage key that was asked for ends in "/"
}

// withSelectors returns q with selectors of everything where it has none.
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

// options returns q as upstream's rules want it.
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

// listOne answers a request for a single object.
func (r *Resource) listOne(q ListRequest, revision int64, o *cache.Object, dst []*cache.Object) (Listing, error) {
	out := Listing{Objects: dst, Meta: wire.ListMeta{Revision: revision}}
	if o == nil {
		return out, nil
	}
	out.Scanned = 1
	if o.Err() != nil {
		if deletesUnread() {
			out.corrupt.add(r.layout.root+q.key(), o)
			return Listing{}, out.corrupt.status(r)
		}
		return Listing{}, o.Err()
	}
	if q.Label.Matches(o.Labels()) && q.Field.Matches(o.Fields()) {
		out.Objects = append(out.Objects, o)
	}
	return out, nil
}

// setContinue puts the token for the next page into out. next is the full key to
// go on at; remaining counts the objects from there on.
func (r *Resource) setContinue(out *Listing, read listing, next string, remaining int64) error {
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

// Messages of apiserver pkg/storage/etcd3/errors.go, which clients know.
const (
	expiredList     = "The resourceVersion for the provided list is too old."
	expiredContinue = "The provided continue parameter is too old " +
		"to display a consistent list result. You can start a new list without " +
		"the continue parameter, or use the continue token in this response to " +
		"retrieve the remainder of the results. Continuing with the provided " +
		"token results in an inconsistent list - objects that were created, " +
		"modified, or deleted between the time the first chunk was returned " +
		"and now may show up in the list."
)

// rangeError returns the error of a list that the store did not answer. If a continue token
// is too old, the error has another one for the same place, at the newest revision.
func (r *Resource) rangeError(ctx context.Context, err error, read listing) error {
	switch {
	case errors.Is(err, kv.ErrFutureRevision):
		current, rerr := r.store.Revision(ctx)
		if rerr != nil {
			current = 0
		}
		return storage.NewTooLargeResourceVersionError(uint64(read.exact), uint64(current), 0)
	case !errors.Is(err, kv.ErrCompacted):
		return etcdError(err)
	case read.q.Continue == "":
		return apierrors.NewResourceExpired(expiredList)
	}
	token, terr := storage.EncodeContinue(read.from, read.prefix, -1)
	if terr != nil {
		return apierrors.NewResourceExpired(expiredList)
	}
	expired := apierrors.NewResourceExpired(expiredContinue)
	expired.ErrStatus.ListMeta.Continue = token
	return expired
}
