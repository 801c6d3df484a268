package encoding

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/shape"
	"github.com/larder-io/larder/internal/registry/wire"
)

// DecodeValue makes the cache's object of a stored value. key is the full key, rest the
// part of it that identifies the object within the resource. A value that cannot be
// decrypted or decoded becomes a corrupt object.
func (c *Codec) DecodeValue(ctx context.Context, key, rest string, value []byte, revision int64) *cache.Object {
	if rest == "" {
		rest = "/" // the root itself, which is no object; kube-apiserver may read it
	}
	data, _, err := c.Decrypt(ctx, key, value)
	if err != nil {
		err = storage.NewInternalError(fmt.Errorf("unable to transform key %q: %w", key, errors.Unwrap(err)))
		return c.corrupt(rest, revision, len(value), err)
	}
	config := cache.ObjectConfig{Key: rest, Revision: revision, Stored: len(value)}
	if c.fingerprints == nil {
		err = c.complete(data, &config)
	} else {
		err = c.completeUnknown(data, &config)
	}
	if err != nil {
		return c.corrupt(rest, revision, len(value), err)
	}
	return cache.NewObject(config, c.schema)
}

// corrupt makes a corrupt object.
func (c *Codec) corrupt(rest string, revision int64, stored int, err error) *cache.Object {
	return cache.NewObject(cache.ObjectConfig{Key: rest, Revision: revision, Stored: stored, Err: err}, c.schema)
}

// completeUnknown is complete that decodes only data of which it is not known what decoding
// makes of it.
func (c *Codec) completeUnknown(data []byte, config *cache.ObjectConfig) error {
	v := c.fingerprints.inspect(data)
	if v == nil {
		return c.complete(data, config)
	}
	defer c.fingerprints.release(v)
	done, learn := c.fingerprints.complete(v, config)
	if done {
		return nil
	}
	if err := c.complete(data, config); err != nil {
		return err
	}
	if learn {
		c.fingerprints.learn(v, config)
	}
	return nil
}

// complete fills in config, which has a key and a revision, from what data decodes to.
// Selectable fields are those of the object before decoration, as upstream's watch
// cache has them.
func (c *Codec) complete(data []byte, config *cache.ObjectConfig) error {
	if known, err := c.completeKnown(data, config); known || err != nil {
		return err
	}
	obj := c.newFunc()
	if err := c.DecodeStored(data, obj, config.Revision); err != nil {
		return err
	}
	var err error
	if config.Labels, config.Fields, err = c.attrs(obj); err != nil {
		return err
	}
	if c.decorate != nil {
		c.decorate(obj)
	}
	if config.Body, err = c.encode(obj); err == nil && c.custom != nil {
		config.Head = wire.HeadJSON(config.Body)
	}
	return err
}

// completeKnown is complete for a custom resource that decoding and encoding would not change;
// known is false for others.
func (c *Codec) completeKnown(data []byte, config *cache.ObjectConfig) (known bool, err error) {
	if c.custom == nil || c.decorate != nil {
		return false, nil
	}
	d, ok := c.custom.read(data)
	if !ok {
		return false, nil
	}
	return true, c.completeRead(&d, config)
}

// completeRead is complete for a document.
func (c *Codec) completeRead(d *shape.Document, config *cache.ObjectConfig) (err error) {
	if config.Labels, config.Fields, err = c.custom.attrsOf(d); err != nil {
		return err
	}
	config.Body = d.AppendRevision(make([]byte, 0, d.Len()+wire.MaxRevision+len(`"resourceVersion":"",`)), config.Revision)
	config.Head = wire.HeadJSON(config.Body)
	return nil
}

// Foresee returns what the cache will hold of s, without its revision and size. obj is what s
// decodes to. A config without a Body says that this is not known: the cache has to decode the
// value.
func (c *Codec) Foresee(rest string, s *Stored, obj runtime.Object) cache.ObjectConfig {
	if rest == "" {
		return cache.ObjectConfig{}
	}
	attrs := c.attrs
	if c.custom != nil {
		// A custom resource is kept in the version that it is stored in. If that is not
		// the version that was written, the cache has to convert.
		if !c.custom.stores(s.Data) {
			return cache.ObjectConfig{}
		}
		attrs = c.custom.attrs
	}
	config := cache.ObjectConfig{Key: rest, Revision: 1}
	known, err := s.known && c.decorate == nil, error(nil)
	if known {
		err = c.completeRead(&s.document, &config)
	} else {
		known, err = c.completeKnown(s.Data, &config)
	}
	switch {
	case err != nil:
		return cache.ObjectConfig{}
	case known:
		return config
	}
	// Written replaces the revision. Only an object that was decoded from s is changed here: if the
	// write fails, the caller may write its own once more.
	if c.custom != nil && c.SetRevision(obj, 1) != nil {
		return cache.ObjectConfig{}
	}
	if config.Labels, config.Fields, err = attrs(obj); err != nil {
		return cache.ObjectConfig{}
	}
	if c.decorate != nil {
		obj = obj.DeepCopyObject()
		c.decorate(obj)
	}
	if config.Body, err = c.encode(obj); err != nil {
		return cache.ObjectConfig{}
	}
	return config
}

// Written makes the cache's object of what [Codec.Foresee] returned, now that it is
// stored at revision; nil if it cannot be made.
func (c *Codec) Written(config cache.ObjectConfig, revision int64) *cache.Object {
	if config.Body == nil {
		return nil
	}
	body, err := c.appendRevision(make([]byte, 0, len(config.Body)+wire.MaxRevision), config.Body, revision)
	if err != nil {
		return nil
	}
	config.Body, config.Revision = body, revision
	if c.custom != nil {
		config.Head = wire.HeadJSON(body)
	}
	return cache.NewObject(config, c.schema)
}
