package customresources

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// AwaitServed blocks until requests are served by the definition of that name as it was written at
// revision, or deleted, or as somebody has left it since.
func (e *Extensions) AwaitServed(ctx context.Context, name string, revision int64, deleted bool) error {
	plural, groupName, _ := strings.Cut(name, ".")
	gr := schema.GroupResource{Group: groupName, Resource: plural}
	if !e.changes.until(ctx, func() bool {
		switch s := e.servings.Load().of(gr); {
		case s != nil && deleted:
			return s.revision() > revision
		case s != nil:
			return s.revision() >= revision
		default:
			return deleted || e.lacks(name, revision)
		}
	}) {
		return fmt.Errorf("extension: definition %s at %d is not served yet: %w", name, revision, context.Cause(ctx))
	}
	return nil
}

// lacks reports whether the informer has seen revision, and no definition of that name.
func (e *Extensions) lacks(name string, revision int64) bool {
	informer := e.Definitions()
	seen, err := strconv.ParseInt(informer.Informer().LastSyncResourceVersion(), 10, 64)
	if err != nil || seen < revision {
		return false
	}
	_, err = informer.Lister().Get(name)
	return apierrors.IsNotFound(err)
}
