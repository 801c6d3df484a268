package main

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// indexLabels is the flag value of labels to index, by resource.
type indexLabels struct {
	labels *map[schema.GroupResource][]string
}

func (x *indexLabels) String() string {
	var all []string
	for resource, keys := range *x.labels {
		all = append(all, resource.String()+"="+strings.Join(keys, ","))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// Set adds the labels of one resource.
func (x *indexLabels) Set(value string) error {
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
	if *x.labels == nil {
		*x.labels = make(map[schema.GroupResource][]string)
	}
	resource := schema.ParseGroupResource(name)
	(*x.labels)[resource] = append((*x.labels)[resource], keys...)
	return nil
}

// Type implements pflag.Value.
func (x *indexLabels) Type() string { return "labels" }
