package registry

import (
	"cmp"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/cache"
)

// budgets has the cache budgets of all resources. It is immutable.
type budgets struct {
	shared *cache.Budget
	shares map[string]ResourceBudget // by the prefix of the resource's keys
}

// ResourceBudget is the budget of one resource, or the shared budget.
type ResourceBudget struct {
	*cache.Budget

	// Resource is the only resource of the Budget. It is empty for the shared budget.
	Resource schema.GroupResource
}

// newBudgets makes the budgets of a config. prefix returns the prefix of the keys of a resource.
func newBudgets(config *Config, prefix func(schema.GroupResource) string) (*budgets, error) {
	sum := int64(0)
	for gr, bytes := range config.CacheShares {
		if bytes < 0 {
			return nil, fmt.Errorf("cache limit of %s must not be negative: %d bytes", gr, bytes)
		}
		if sum += bytes; sum < 0 {
			return nil, fmt.Errorf("the sum of the cache limits of single resources overflows")
		}
	}
	shared, err := newBudget(config.CacheBytes, sum)
	if err != nil {
		return nil, err
	}
	b := &budgets{shared: shared, shares: make(map[string]ResourceBudget)}
	for gr, bytes := range config.CacheShares {
		keys := prefix(gr)
		if other, ok := b.shares[keys]; ok {
			return nil, fmt.Errorf("%s and %s are the same objects: only one can have a cache limit", gr, other.Resource)
		}
		b.shares[keys] = ResourceBudget{shared.NewShare(bytes), gr}
	}
	return b, nil
}

// newBudget returns the shared budget. shares is the sum of the shares of single resources.
func newBudget(bytes, shares int64) (*cache.Budget, error) {
	switch {
	case bytes < 0:
		return cache.NewBudget(0), nil
	case bytes > 0 && shares > bytes:
		return nil, fmt.Errorf("--cache-max-bytes: the limits of single resources add up to %d bytes, more than the limit of all caches, %d", shares, bytes)
	case bytes > 0:
		return cache.NewBudget(bytes), nil
	}
	maximum := debug.SetMemoryLimit(-1) / 8 * 3 // -1 only reads the limit
	if shares >= maximum {
		return nil, fmt.Errorf("the cache limits of single resources add up to %d bytes, more than the limit of all caches, %d, which is three eighths of the memory limit; --cache-max-bytes can allow more", shares, maximum)
	}
	return cache.NewGrowingBudget(cache.Growth{
		MinEncodings: 144 << 20, // 10,000 pods in JSON and as a table: B2, B5
		MinTotal:     256 << 20,
		Max:          maximum - shares,
	}), nil
}

// of returns the budget of the resource whose keys begin with prefix.
func (b *budgets) of(prefix string) *cache.Budget {
	if s, ok := b.shares[prefix]; ok {
		return s.Budget
	}
	return b.shared
}

// list returns all budgets, the shared one first.
func (b *budgets) list() []ResourceBudget {
	shares := slices.SortedFunc(maps.Values(b.shares), func(a, b ResourceBudget) int {
		return cmp.Compare(a.Resource.String(), b.Resource.String())
	})
	return append([]ResourceBudget{{Budget: b.shared}}, shares...)
}
