// Package jsonpatch stands in for the library of this name that Kubernetes patches JSON
// with.
//
// It has what Kubernetes uses of it, and all is the library's own but for MergePatch:
// the library parses each level of a document once for each level above it, and writes it
// as often, so that a patch of 54 KB nested 9,000 deep takes seconds, and one as large as
// requests may be takes minutes. The MergePatch of this package gives the same bytes and
// errors in time linear in what it is given. FuzzMergePatch of package httpapi compares
// both.
//
// Functions keep no state and may be called at the same time. What they return is the
// caller's and shares no memory with what they were given.
package jsonpatch

import original "github.com/evanphx/json-patch"

// Patch is a JSON patch.
type Patch = original.Patch

// Operation is one step of a Patch.
type Operation = original.Operation

// What patching fails with.
var (
	ErrBadJSONDoc   = original.ErrBadJSONDoc
	ErrBadJSONPatch = original.ErrBadJSONPatch
	ErrTestFailed   = original.ErrTestFailed
)

// AccumulatedCopySizeLimit is there for upstream code that is linked and never run. What
// counts is the library's own.
var AccumulatedCopySizeLimit int64

// DecodePatch parses a JSON patch.
func DecodePatch(buf []byte) (Patch, error) { return original.DecodePatch(buf) }

// CreateMergePatch returns a merge patch that makes modified of doc.
func CreateMergePatch(doc, modified []byte) ([]byte, error) {
	return original.CreateMergePatch(doc, modified)
}
