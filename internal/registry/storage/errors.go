package storage

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/kv"
)

// badRevision is the error of a malformed resourceVersion.
func badRevision(err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
}

// listError returns the error of the corrupt object that fails a list.
func listError(err error) error {
	var corrupt *cache.CorruptError
	if errors.As(err, &corrupt) {
		return corrupt.Object.Err()
	}
	return err
}

// etcdError returns etcd's own error, whose text clients see.
func etcdError(err error) error {
	var e *kv.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}
