package storage

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/kv"
)

// present is the current object of a key that is written.
type present struct {
	obj   runtime.Object // nil if it may be deleted unread
	rev   int64          // 0 if there is none
	from  *cache.Object  // the cache's object that obj was decoded from, nil if this write has read the store
	bytes []byte         // obj was decoded from these: the body of from, or plain stored bytes
	stale bool           // the write takes place even if nothing changes
}

func (a *adapter) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	ctx, end := a.startWriteSpan(ctx, "Create etcd3", key, obj)
	defer end()
	full, err := a.layout.full(key, false)
	if err != nil {
		return err
	}
	if version, err := a.codec.Versioner().ObjectResourceVersion(obj); err == nil && version != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	stored, err := a.encode(ctx, obj, 0)
	if err != nil {
		return err
	}
	var next *outcome
	if out != nil {
		next = a.outcomeOf(ctx, full, obj, &stored, out)
	}
	result, err := a.put(ctx, full, stored.Data, 0, ttl, next)
	addEndEvent(ctx, "Txn call", "succeeded", err)
	switch {
	case err != nil:
		return err
	case !result.Committed:
		return storage.NewKeyExistsError(full, 0)
	case out == nil:
		return nil
	}
	return a.committed(ctx, next, out, result.Revision)
}

// encode encodes an object for the store. size is its approximate size, 0 if that is not known.
func (a *adapter) encode(ctx context.Context, obj runtime.Object, size int) (encoding.Stored, error) {
	addSpanEvent(ctx, "About to Encode")
	stored, err := a.codec.Store(obj, size)
	addEndEvent(ctx, "Encode", "succeeded", err)
	return stored, err
}

// trackStore adds the time since began to the request's storage latency.
func trackStore(ctx context.Context, began time.Time) {
	apirequest.TrackStorageLatency(ctx, time.Since(began))
}

// put encrypts data and writes it if the key is at revision. next, if that is not nil, is
// offered to the cache.
func (a *adapter) put(ctx context.Context, full string, data []byte, revision int64, ttl uint64, next *outcome) (kv.WriteResult, error) {
	value, err := a.codec.Encrypt(ctx, full, data)
	addEndEvent(ctx, "TransformToStorage", "succeeded", err)
	if err != nil {
		return kv.WriteResult{}, err
	}
	var offer *cache.Offer
	if next != nil && next.cache.Known() {
		prebuilt := next.cache
		offer = a.Cache.Offer(prebuilt.Key(), value, 2*len(value), func(revision int64) *cache.Object {
			return a.written(full, value, &prebuilt, revision)
		})
		next.offer = offer
	}
	began := time.Now()
	result, err := a.store.Put(ctx, full, value, kv.PutOptions{IfRevision: revision, TTL: time.Duration(ttl) * time.Second})
	trackStore(ctx, began)
	switch {
	case offer == nil:
	case err == nil && result.Committed:
		a.Cache.Written(offer, result.Revision)
	default: // the value may have been written
		offer.Withdraw()
	}
	return result, etcdError(err)
}

// written returns the cached object of a value.
//
// Invariant: it equals the object that decoding the value makes.
func (a *adapter) written(full string, value []byte, prebuilt *encoding.Prebuilt, revision int64) *cache.Object {
	o := prebuilt.Object(a.codec, revision, len(value))
	if invariants.Enabled && o != nil && !a.codec.IsCustom() { // custom ones may call a webhook
		want := a.codec.DecodeValue(context.Background(), full, prebuilt.Key(), value, revision)
		if want.Err() == nil && !o.Equal(want) {
			panic(fmt.Sprintf("registry: %s: a write offers %q, decoding makes %q", full, o.Body(), want.Body()))
		}
	}
	return o
}

// outcome is the result of a write, without its revision.
type outcome struct {
	obj   runtime.Object
	data  []byte            // stored bytes to decode obj from; nil if obj is decoded
	cache encoding.Prebuilt // offered to the cache, if it is known
	offer *cache.Offer      // nil if nothing was offered
	err   error             // data cannot be decoded, which does not stop the write
}

// outcomeOf makes the outcome of storing obj, in an object like out.
func (a *adapter) outcomeOf(ctx context.Context, full string, obj runtime.Object, stored *encoding.Stored, out runtime.Object) *outcome {
	next := &outcome{}
	if a.Cache != nil {
		next.cache = a.codec.PrebuildByRule(a.layout.rest(full), stored)
	}
	alike := next.cache.Known()
	if alike && writtenOf(ctx) != nil && reflect.TypeOf(obj) == reflect.TypeOf(out) {
		next.obj, next.data = obj, stored.Data
	} else {
		next.obj, next.err = stored.Decode(a.codec, newLike(out))
	}
	if addEndEvent(ctx, "decode", "succeeded", next.err); next.err == nil && a.Cache != nil && !alike {
		next.cache = a.codec.Prebuild(a.layout.rest(full), stored, next.obj)
	}
	return next
}

// committed sets out to the object that was stored at revision.
func (a *adapter) committed(ctx context.Context, next *outcome, out runtime.Object, revision int64) error {
	if next.err != nil {
		return next.err
	}
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(next.obj).Elem())
	if err := a.codec.SetRevision(out, revision); err != nil {
		return err
	}
	if next.offer != nil && next.cache.Plain {
		writtenOf(ctx).record(written{codec: a.codec, result: out, data: next.data, revision: revision, offer: next.offer})
	}
	return nil
}

// newLike makes an empty object of the type that obj has.
func newLike(obj runtime.Object) runtime.Object {
	if u, ok := obj.(runtime.Unstructured); ok {
		return u.NewEmptyInstance()
	}
	return reflect.New(reflect.TypeOf(obj).Elem()).Interface().(runtime.Object)
}

// suggestion returns the probable current object, without reading the store: the result of a write whose event the
// cache has not applied yet, or the cached object. It returns nil if there is none.
// Results of writes matter because the deletion of a pod takes two writes in quick succession.
//
// Decorated objects differ from stored ones, so suggestion does not use them.
func (a *adapter) suggestion(full string, like runtime.Object) (*present, error) {
	if a.Cache == nil || !a.Cache.Ready() || a.codec.Decorate != nil {
		return nil, nil
	}
	ahead := a.Cache.Unapplied(a.layout.rest(full))
	snapshot := a.Cache.Snapshot()
	o := snapshot.Get(a.layout.rest(full))
	if ahead != nil && ahead.Revision() > snapshot.Revision() {
		o = ahead
	}
	if o == nil || o.Err() != nil || snapshot.History() != a.store.Replacements() {
		return nil, nil
	}
	p := &present{obj: newLike(like), rev: o.Revision(), from: o, bytes: o.Body()}
	return p, a.codec.Restore(p.bytes, p.obj)
}

// unchanged reports whether p is known to be stored as next.
func (a *adapter) unchanged(p *present, next *encoding.Stored) bool {
	if p.from == nil {
		return bytes.Equal(next.Data, p.bytes)
	}
	if size := p.from.StoredSize(); !a.codec.Encrypted && size != 0 && size != int64(len(next.Data)) {
		return false // the store has other bytes
	}
	return a.codec.StoresAs(p.from, p.bytes, next)
}

// GuaranteedUpdate ignores the object that the caller suggests, like Delete: upstream's REST storages suggest none.
func (a *adapter) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, _ runtime.Object) error {
	ctx, end := a.startWriteSpan(ctx, "GuaranteedUpdate etcd3", key, destination)
	defer end()
	full, err := a.layout.full(key, false)
	if err != nil {
		return err
	}
	if _, err := conversion.EnforcePtr(destination); err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %w", err)
	}
	u := &update{
		write:  write{adapter: a, full: full, like: destination, ignoreNotFound: ignoreNotFound, preconditions: preconditions},
		change: tryUpdate,
	}
	if err := u.begin(ctx); err != nil {
		return err
	}
	addSpanEvent(ctx, "initial value restored")
	for {
		done, err := u.try(ctx, destination)
		if done || err != nil {
			return err
		}
		addSpanEvent(ctx, "Retry value restored")
	}
}

// write is the state of a write of one key. It starts with the probable current object. If the store has another
// object, it starts again with that object, until the transaction commits.
type write struct {
	*adapter
	full           string
	like           runtime.Object
	ignoreNotFound bool
	unread         bool
	preconditions  *storage.Preconditions
	now            *present
}

// begin takes the suggestion, or reads the store.
func (w *write) begin(ctx context.Context) (err error) {
	if !w.unread {
		w.now, err = w.suggestion(w.full, w.like)
	}
	if err == nil && w.now == nil {
		err = w.refresh(ctx)
	}
	return err
}

// refresh reads the present object from the store.
func (w *write) refresh(ctx context.Context) error {
	began := time.Now()
	item, found, _, err := w.store.Get(ctx, w.full)
	trackStore(ctx, began)
	if err != nil {
		return etcdError(err)
	}
	return w.take(ctx, item, found)
}

// take makes an item of the store the present object. It does not decode the item if the object may be
// deleted unread.
func (w *write) take(ctx context.Context, item kv.Item, found bool) (err error) {
	p := &present{}
	w.now = p
	if !found {
		if !w.ignoreNotFound {
			return storage.NewKeyNotFoundError(w.full, 0)
		}
		p.obj = newLike(w.like)
		return runtime.SetZeroValue(p.obj)
	}
	p.rev = item.Revision
	if w.unread {
		p.stale = true
		return nil
	}
	if p.bytes, p.stale, err = w.codec.Decrypt(ctx, w.full, item.Value); err != nil {
		return unreadable(p.rev, err)
	}
	p.obj = newLike(w.like)
	return unreadable(p.rev, w.codec.DecodeStored(p.bytes, p.obj, p.rev))
}

// rejection returns the error of a precondition, validation or update function if it was called with the current
// object. Otherwise it returns nil, and the write tries again.
func (w *write) rejection(ctx context.Context, refusal error) error {
	if w.now.from == nil {
		return refusal
	}
	before := w.now.rev
	if err := w.refresh(ctx); err != nil {
		return err
	}
	if w.now.rev == before {
		return refusal
	}
	return nil
}

// update is the state of a GuaranteedUpdate.
type update struct {
	write
	change storage.UpdateFunc
}

// try updates the probable present object. done is false if another object is present.
func (u *update) try(ctx context.Context, destination runtime.Object) (done bool, err error) {
	if err := u.preconditions.Check(u.full, u.now.obj); err != nil {
		return false, u.rejection(ctx, err)
	}
	ret, ttl, err := u.change(u.now.obj, storage.ResponseMeta{ResourceVersion: uint64(u.now.rev)})
	if err != nil {
		return false, u.rejection(ctx, err)
	}
	stored, err := u.encode(ctx, ret, len(u.now.bytes))
	if err != nil {
		return false, err
	}
	if u.unchanged(u.now, &stored) {
		if done, err := u.confirm(ctx, stored.Data, destination); done || err != nil {
			return done, err
		}
		if !bytes.Equal(stored.Data, u.now.bytes) {
			return false, nil // another object is present: try again with that
		}
	}
	var seconds uint64
	if ttl != nil {
		seconds = *ttl
	}
	next := u.outcomeOf(ctx, u.full, ret, &stored, destination)
	addSpanEvent(ctx, "Transaction prepared")
	result, err := u.put(ctx, u.full, stored.Data, u.now.rev, seconds, next)
	addEndEvent(ctx, "Txn call", "completed", err)
	if err != nil {
		return false, err
	}
	if !result.Committed {
		return false, u.take(ctx, result.Current, result.Found)
	}
	addSpanEvent(ctx, "Transaction committed")
	return true, u.committed(ctx, next, destination, result.Revision)
}

// confirm skips a write that would not change the bytes in the store. It does not compare cached bytes, because they have
// defaults that stored bytes may lack. A client may update an object without a change only to migrate it to the
// present storage version or encryption key.
func (u *update) confirm(ctx context.Context, data []byte, destination runtime.Object) (done bool, err error) {
	from := u.now.from
	if from != nil {
		if err := u.refresh(ctx); err != nil {
			return false, err
		}
	}
	if u.now.stale || !bytes.Equal(data, u.now.bytes) {
		return false, nil
	}
	if err := u.codec.DecodeStored(u.now.bytes, destination, u.now.rev); err != nil {
		return true, err
	}
	if from != nil && from.Revision() == u.now.rev && u.codec.EncodesLosslessly(data) {
		writtenOf(ctx).record(written{codec: u.codec, result: destination, revision: u.now.rev, from: from})
	}
	return true, nil
}

func (a *adapter) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc, _ runtime.Object, opts storage.DeleteOptions) error {
	full, err := a.layout.full(key, false)
	if err != nil {
		return err
	}
	if _, err := conversion.EnforcePtr(out); err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %w", err)
	}
	d := &deletion{
		write:    write{adapter: a, full: full, like: out, preconditions: preconditions},
		validate: validate,
	}
	d.unread = opts.IgnoreStoreReadError && UnsafeDeleteEnabled()
	if err := d.begin(ctx); err != nil {
		return err
	}
	for {
		done, err := d.try(ctx, out)
		if done || err != nil {
			return err
		}
	}
}

// deletion is the state of a Delete.
type deletion struct {
	write
	validate storage.ValidateObjectFunc
}

// try deletes the probable present object. done is false if another object is present.
func (d *deletion) try(ctx context.Context, out runtime.Object) (done bool, err error) {
	err = d.preconditions.Check(d.full, d.now.obj)
	if err == nil {
		err = d.validate(ctx, d.now.obj)
	}
	if err != nil {
		return false, d.rejection(ctx, err)
	}
	began := time.Now()
	result, err := d.store.Delete(ctx, d.full, d.now.rev)
	trackStore(ctx, began)
	if err != nil {
		return false, etcdError(err)
	}
	if !result.Committed {
		return false, d.take(ctx, result.Current, result.Found)
	}
	if d.unread {
		return true, nil
	}
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(d.now.obj).Elem())
	if err := d.codec.SetRevision(out, result.Revision); err != nil {
		return true, err
	}
	if d.now.from != nil && (!d.codec.IsCustom() || d.codec.EncodesLosslessly(d.now.bytes)) {
		writtenOf(ctx).record(written{codec: d.codec, result: out, revision: result.Revision, from: d.now.from})
	}
	return true, nil
}
