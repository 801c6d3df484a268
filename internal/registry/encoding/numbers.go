package encoding

import (
	"errors"
)

// ID is the number of an encoding among those of one resource's objects. Versions share the
// encodings of PartialObjectMetadata, which are the same in every version of a built-in kind.
type ID = uint8

const (
	canonicalID = 0
	partialIDs  = 1 // media type and projection of PartialObjectMetadata follow
	versionIDs  = partialIDs + mediaTypes*(projections-1)
	maxIDs      = 1 << 8
)

// errTooManyVersions says that there is no number left for the encodings of a version.
var errTooManyVersions = errors.New("registry: served in too many versions")

// numbers allocates the IDs of a resource.
type numbers struct{ used int }

// take returns the first of n IDs that are not taken.
func (s *numbers) take(n int) (ID, error) {
	base := versionIDs + s.used
	if base+n > maxIDs {
		return 0, errTooManyVersions
	}
	s.used += n
	return ID(base), nil
}
