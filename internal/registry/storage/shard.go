package storage

import (
	"fmt"
	"math"
	"strconv"

	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apiserver/pkg/features"
	parser "k8s.io/apiserver/pkg/sharding"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/wire"
)

// Sharded reports whether lists and watches may select a shard.
func Sharded() bool { return utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) }

// ParseShard reads the shardSelector of a list or watch: apiserver
// pkg/registry/generic/registry/store.go. It returns nil if there is none, or if the feature is
// off.
func ParseShard(text string) (sharding.Selector, error) {
	if text == "" || !Sharded() {
		return nil, nil
	}
	selector, err := parser.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("invalid shard selector: %w", err)
	}
	return selector, nil
}

// shardOf returns the cache's shard for a selector, nil for nil. It may fail for a selector that was not
// parsed: upstream fails at each object.
func shardOf(selector sharding.Selector) (*cache.Shard, error) {
	if selector == nil || selector.Empty() {
		return nil, nil
	}
	requirements := selector.Requirements()
	var ranges []cache.HashRange
	for _, r := range requirements {
		if key := requirements[0].Key; r.Key != key {
			return nil, fmt.Errorf("shard matching failed: inconsistent shard keys: %q vs %q", key, r.Key)
		}
		first, err := strconv.ParseUint(r.Start, 0, 64)
		if err != nil {
			return nil, fmt.Errorf("registry: start of a shard: %w", err)
		}
		last := uint64(math.MaxUint64)
		if r.End != "0x10000000000000000" {
			if last, err = strconv.ParseUint(r.End, 0, 64); err != nil {
				return nil, fmt.Errorf("registry: end of a shard: %w", err)
			}
			last-- // the parser rejects empty ranges
		}
		ranges = append(ranges, cache.HashRange{First: first, Last: last})
	}
	switch key := requirements[0].Key; key {
	case "object.metadata.uid":
		return cache.NewShard(cache.ByIdentity, ranges...), nil
	case "object.metadata.namespace":
		return cache.NewShard(cache.ByNamespace, ranges...), nil
	default:
		return nil, fmt.Errorf("shard matching failed: unsupported field path: %q", key)
	}
}

// Identified returns schema with UIDs for shards, if the feature is on. custom says that the canonical
// encoding is JSON.
func Identified(schema *cache.ResourceSchema, custom bool) *cache.ResourceSchema {
	if Sharded() {
		if custom {
			schema.IdentifyBy(wire.UIDJSON)
		} else {
			schema.IdentifyBy(wire.UIDProtobuf)
		}
	}
	return schema
}
