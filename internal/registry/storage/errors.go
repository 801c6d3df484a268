package storage

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/kv"
)

// Texts of errors if corrupt objects may be deleted unread: apiserver pkg/storage/etcd3/corrupt_obj_deleter.go.
const (
	untransformable = "data from the storage is not transformable"
	undecodable     = "object not decodable"

	// maxCorrupt limits the corrupt objects that the error of a list names.
	maxCorrupt = 100
)

// UnsafeDeleteEnabled reports whether corrupt objects may be deleted unread: the feature is off by
// default.
func UnsafeDeleteEnabled() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
}

// corruption is the error of a stored value.
type corruption struct {
	what     string
	revision int64
	err      error
}

func (c *corruption) Error() string {
	return fmt.Sprintf("%s revision=%d: %v", c.what, c.revision, c.err)
}

func (c *corruption) Unwrap() error { return c.err }

// corruptError returns the error by which upstream's handlers allow the object under key to be deleted
// unread.
func corruptError(key string, revision int64, err error) error {
	c := &corruption{what: undecodable, revision: revision, err: err}
	if storage.IsInternalError(c.err) { // as Codec.DecodeValue wraps it
		c = &corruption{what: untransformable, err: errors.Unwrap(errors.Unwrap(c.err))}
	}
	return storage.NewCorruptObjError(key, c)
}

// unreadable returns the error of a write whose present object could not be decoded because of err. It returns nil if
// err is nil.
func unreadable(revision int64, err error) error {
	if err == nil || !UnsafeDeleteEnabled() {
		return err
	}
	var internal storage.InternalError
	if errors.As(err, &internal) { // of Codec.Decrypt
		return storage.NewInternalError(&corruption{what: untransformable, err: errors.Unwrap(internal)})
	}
	return &corruption{what: undecodable, revision: revision, err: err}
}

// corruptList collects the errors of the corrupt objects of a list.
type corruptList struct{ causes []metav1.StatusCause }

// add adds an object under its full key, and reports whether there is room for more.
func (l *corruptList) add(full string, o *cache.Object) bool {
	if len(l.causes) >= maxCorrupt {
		l.causes = append(l.causes, metav1.StatusCause{
			Type: metav1.CauseTypeTooMany, Message: "too many errors, the list is truncated",
		})
		return false
	}
	l.causes = append(l.causes, metav1.StatusCause{
		Type: metav1.CauseTypeUnexpectedServerResponse, Field: full, Message: corruptError(full, o.Revision(), o.Err()).Error(),
	})
	return true
}

// status returns the error of a list with corrupt objects, nil if there are none.
func (l *corruptList) status(of schema.GroupResource) error {
	if len(l.causes) == 0 {
		return nil
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonStoreReadError,
		Message: fmt.Sprintf("failed to read one or more %s from the storage", of),
		Details: &metav1.StatusDetails{Group: of.Group, Kind: of.Resource, Name: "list", Causes: l.causes},
	}}
}

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
