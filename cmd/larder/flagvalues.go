package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// cacheBytes is the flag value of --cache-max-bytes: a limit for all caches, and limits of single
// resources, called shares.
type cacheBytes struct {
	all    *int64
	shares *map[schema.GroupResource]int64
}

// String implements pflag.Value.
func (c *cacheBytes) String() string {
	parts := []string{strconv.FormatInt(*c.all, 10)}
	for gr, bytes := range *c.shares {
		parts = append(parts, fmt.Sprintf("%s=%d", gr, bytes))
	}
	slices.Sort(parts[1:])
	return strings.Join(parts, ",")
}

// Set parses [BYTES][,resource[.group]=BYTES]...; an invalid value changes nothing.
func (c *cacheBytes) Set(value string) error {
	all, shares, plain := *c.all, make(map[schema.GroupResource]int64), false
	for part := range strings.SplitSeq(value, ",") {
		name, figure, share := strings.Cut(strings.TrimSpace(part), "=")
		if !share {
			name, figure = "", name
		}
		bytes, err := parseBytes(figure)
		if err != nil {
			return err
		}
		if !share {
			if plain {
				return errors.New("only one limit for all resources is allowed")
			}
			all, plain = bytes, true
			continue
		}
		gr := schema.ParseGroupResource(name)
		if _, twice := shares[gr]; twice || gr.Resource == "" {
			return fmt.Errorf("%q names no resource, or one that already has a limit", part)
		}
		if bytes < 0 {
			return fmt.Errorf("%q: the limit of a resource must not be negative", part)
		}
		shares[gr] = bytes
	}
	merged := make(map[schema.GroupResource]int64)
	maps.Copy(merged, *c.shares) // keep the shares of earlier flags
	maps.Copy(merged, shares)
	*c.all, *c.shares = all, merged
	return nil
}

// parseBytes parses a whole number of bytes, or -1.
func parseBytes(s string) (int64, error) {
	q, err := resource.ParseQuantity(s)
	if bytes := q.Value(); err == nil && bytes >= -1 && q.Cmp(*resource.NewQuantity(bytes, resource.BinarySI)) == 0 {
		return bytes, nil
	}
	return 0, fmt.Errorf("%q is not a number of bytes, such as 536870912 or 512Mi", s)
}

// Type implements pflag.Value.
func (c *cacheBytes) Type() string { return "bytes" }

// indexLabels is the flag value of labels to index, by resource.
type indexLabels map[schema.GroupResource][]string

func (i *indexLabels) String() string {
	var all []string
	for resource, keys := range *i {
		all = append(all, resource.String()+"="+strings.Join(keys, ","))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// Set adds the labels of one resource.
func (i *indexLabels) Set(value string) error {
	name, list, ok := strings.Cut(value, "=")
	if !ok || name == "" {
		return fmt.Errorf("%q is not resource[.group]=key[,key]", value)
	}
	keys := strings.Split(list, ",")
	for _, key := range keys {
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			return fmt.Errorf("%q is not a label key: %s", key, strings.Join(problems, "; "))
		}
	}
	if *i == nil {
		*i = make(indexLabels)
	}
	resource := schema.ParseGroupResource(name)
	(*i)[resource] = append((*i)[resource], keys...)
	return nil
}

// Type implements pflag.Value.
func (i *indexLabels) Type() string { return "labels" }

// faultsFlag is the flag value of --faults: a boolean, or the seed of random faults.
type faultsFlag struct {
	enabled *bool
	seed    *uint64
}

// String implements pflag.Value.
func (f *faultsFlag) String() string {
	if *f.seed != 0 {
		return strconv.FormatUint(*f.seed, 10)
	}
	return strconv.FormatBool(*f.enabled)
}

// Set implements pflag.Value.
func (f *faultsFlag) Set(value string) error {
	switch value {
	case "true", "false":
		*f.enabled, *f.seed = value == "true", 0
		return nil
	}
	seed, err := strconv.ParseUint(value, 10, 64)
	if err != nil || seed == 0 {
		return fmt.Errorf("%q is neither a boolean nor a positive number", value)
	}
	*f.enabled, *f.seed = true, seed
	return nil
}

// Type implements pflag.Value.
func (f *faultsFlag) Type() string { return "seed" }
