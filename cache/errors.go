package cache

import (
	"errors"
	"fmt"
)

// ErrReset says that a position or revision belongs to an earlier epoch: the
// cache was reloaded and its log restarted. Take a new Snapshot.
var ErrReset = errors.New("cache: the log was restarted")

// ErrNotReady says that the cache has not been loaded yet.
var ErrNotReady = errors.New("cache: not loaded yet")

// ErrTooOld says that the log no longer has events that were requested.
type ErrTooOld struct {
	// Requested is the requested revision, or 0 if a position was requested.
	Requested int64
	// Oldest is the smallest revision from which the log can be followed.
	Oldest int64
}

// Error implements error.
func (e ErrTooOld) Error() string {
	if e.Requested == 0 {
		return fmt.Sprintf("cache: position too old (oldest revision %d)", e.Oldest)
	}
	return fmt.Sprintf("cache: revision %d too old (oldest %d)", e.Requested, e.Oldest)
}

// errFuture says that the cache has not reached the requested revision.
type errFuture struct{ Requested, Current int64 }

// Error implements error.
func (e errFuture) Error() string {
	return fmt.Sprintf("cache: revision %d too large (current %d)", e.Requested, e.Current)
}

// CorruptError is the error of a List that covers a corrupt object.
type CorruptError struct {
	// Object is the corrupt object; its Err is not nil.
	Object *Object
	// Deleted says that the event is the object's deletion.
	Deleted bool
}

// Error names the key and the reason.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("cache: object %q: %v", e.Object.Key(), e.Object.Err())
}

// Unwrap returns the object's error.
func (e *CorruptError) Unwrap() error { return e.Object.Err() }
