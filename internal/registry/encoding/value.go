package encoding

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/internal/registry/servedjson"
	"github.com/larder-io/larder/internal/registry/wire"
)

// DecodeValue makes the cached object of a stored value. key is the full key, rest its part within the
// resource. A value that cannot be decrypted or decoded becomes a corrupt object.
func (c *Codec) DecodeValue(ctx context.Context, key, rest string, value []byte, revision int64) *cache.Object {
	if rest == "" {
		rest = "/" // the root itself, which is not an object; kube-apiserver may read it
	}
	data, _, err := c.Decrypt(ctx, key, value)
	if err != nil {
		err = storage.NewInternalError(fmt.Errorf("unable to transform key %q: %w", key, errors.Unwrap(err)))
		return c.corrupt(rest, revision, len(value), err)
	}
	config := cache.ObjectConfig{Key: rest, Revision: revision, StoredSize: len(value)}
	if !c.rules.complete(data, &config) {
		if err = c.decodeInto(data, &config); err != nil {
			c.undecodable.Add(1)
			return c.corrupt(rest, revision, len(value), err)
		}
	} else if invariants.Enabled {
		c.checkRule(data, &config)
	}
	return cache.NewObject(config, c.Schema)
}

// checkRule panics unless decoding data gives the result of a rule.
func (c *Codec) checkRule(data []byte, made *cache.ObjectConfig) {
	want := cache.ObjectConfig{Key: made.Key, Revision: made.Revision}
	if err := c.decodeInto(data, &want); err != nil || !bytes.Equal(made.Body, want.Body) {
		panic(fmt.Sprintf("encoding: %s: a rule makes %q, decoding %q, %v", made.Key, made.Body, want.Body, err))
	}
}

func (c *Codec) corrupt(rest string, revision int64, stored int, err error) *cache.Object {
	return cache.NewObject(cache.ObjectConfig{Key: rest, Revision: revision, StoredSize: stored, Err: err}, c.Schema)
}

// decodeInto completes config by decoding data. Selectable fields are taken before decoration, as in
// upstream's watch cache.
func (c *Codec) decodeInto(data []byte, config *cache.ObjectConfig) error {
	if known, err := c.readDocument(data, config); known || err != nil {
		return err
	}
	obj, err := c.New(), error(nil)
	if c.Served { // by another API server, whose message is the body
		var ok bool
		if config.Body, ok = c.cutEnvelope(data); !ok {
			return fmt.Errorf("registry: value is not a message of %s", c.Canonical)
		}
		err = c.Decode(config.Body, obj)
	} else {
		err = c.decodeStored(data, obj, config.Revision)
	}
	if err != nil {
		return err
	}
	if config.Labels, config.Fields, err = c.Attrs(obj); err != nil || c.Served {
		return err
	}
	if c.Decorate != nil {
		c.Decorate(obj)
	}
	if config.Body, err = c.encode(obj); err == nil && c.custom != nil {
		config.Head = wire.HeadJSON(config.Body)
	}
	return err
}

// readDocument completes config for a custom resource in served form; known is false for others.
func (c *Codec) readDocument(data []byte, config *cache.ObjectConfig) (known bool, err error) {
	if c.custom == nil || c.Decorate != nil {
		return false, nil
	}
	d := c.custom.read(data)
	if d == nil {
		return false, nil
	}
	if config.Labels, config.Fields, err = c.custom.attrsOf(d); err == nil {
		setDocument(config, d)
	}
	return true, err
}

func setDocument(config *cache.ObjectConfig, d *servedjson.Document) {
	config.Body = d.AppendRevision(make([]byte, 0, d.Len()+wire.MaxRevision+len(`"resourceVersion":"",`)), config.Revision)
	config.Head = wire.HeadJSON(config.Body)
}
