package registry

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/registry/builtin"
	"github.com/larder-io/larder/internal/registry/storage"
)

// Resource is what a View reads from: see package storage.
type Resource = storage.Resource

// Priority is where a version stands in discovery.
type Priority = builtin.Priority

// Priorities returns those of all versions that a server may have built in.
func Priorities() map[schema.GroupVersion]Priority { return builtin.Priorities() }
