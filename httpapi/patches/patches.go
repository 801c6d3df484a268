// Package patches applies JSON patches and merge patches, strategic or not, and reads applied
// configurations, as upstream's handler of patches does (apiserver pkg/endpoints/handlers/patch.go).
//
// A [Patch] makes a new object of a stored one. Merge patches, strategic ones as kubelets send them and
// JSON ones as many controllers do, touch little of their object most of the time, and cost what they
// touch (narrow.go).
//
// The package limits the cost of a patch. Upstream's library parses and writes a nested value once for
// each level above it, so its time grows with the product of depth and size: the largest and deepest
// body that JSON allows takes minutes. [Check] refuses patches that are deeper than any Kubernetes
// object. The deepest accepted patch takes about ten times as long as a flat one of its size.
// [BoundCopies] limits the copies of a JSON patch. Patches of other types decode in linear time.
//
// An applied configuration is YAML. Most clients send JSON, and [Applied] decodes most of it as that.
package patches

import (
	"bytes"
	"fmt"
	"strings"
	"sync/atomic"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// MaxDepth is how deep a patch may be nested, and how deep the paths of a JSON patch may
	// lead. Definitions of custom resources are the deepest objects that there are, some 40
	// levels for the largest that are published.
	MaxDepth = 100

	// maxMoved is how many levels the targets of all moves of a JSON patch may have together:
	// what is moved keeps the levels that the library has parsed, so that moves pile them up.
	maxMoved = 500

	// maxOperations is the most that upstream applies (apiserver
	// pkg/endpoints/handlers/patch.go).
	maxOperations = 10000

	// maxCopied is how many bytes the copies of one JSON patch may add in all (apiserver
	// pkg/server/config.go). Without a bound few operations would fill any memory.
	maxCopied = 3 << 20
)

// BoundCopies bounds the copies of JSON patches, for the whole process: the library has a
// variable for it.
func BoundCopies() { atomic.CompareAndSwapInt64(&jsonpatch.AccumulatedCopySizeLimit, 0, maxCopied) }

// Check returns what a patch of a type must pass before it is applied, nil if that is cheap. Its error
// is that of a bad request.
func Check(kind types.PatchType) func(data []byte) error {
	switch kind {
	case types.MergePatchType:
		return checkMergePatch
	case types.JSONPatchType:
		return checkJSONPatch
	}
	return nil
}

// refusal is the error of a patch that is refused.
func refusal(format string, args ...any) error {
	return apierrors.NewBadRequest("error decoding patch: " + fmt.Sprintf(format, args...))
}

func checkMergePatch(data []byte) error {
	if deeper(data, MaxDepth) {
		return refusal("nested more than %d deep", MaxDepth)
	}
	return nil
}

// checkJSONPatch passes what the library will not decode: upstream refuses it.
func checkJSONPatch(data []byte) error {
	if deeper(data, MaxDepth+2) { // the list and its operations
		return refusal("values are nested more than %d deep", MaxDepth)
	}
	if bytes.Count(data, []byte{'/'})+bytes.Count(data, []byte{'\\'}) <= MaxDepth {
		return nil // no path is that long
	}
	operations, err := jsonpatch.DecodePatch(data)
	if err != nil || len(operations) > maxOperations {
		return nil
	}
	moved := 0
	for _, operation := range operations {
		path, _ := operation.Path()
		from, _ := operation.From()
		levels := strings.Count(path, "/")
		if levels > MaxDepth || strings.Count(from, "/") > MaxDepth {
			return refusal("a path leads more than %d deep", MaxDepth)
		}
		if operation.Kind() != "move" {
			continue
		}
		if moved += levels; moved > maxMoved {
			return refusal("the targets of all moves are more than %d deep together", maxMoved)
		}
	}
	return nil
}

// deeper reports whether data, if it is JSON, is nested deeper than levels.
func deeper(data []byte, levels int) bool {
	depth := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			if depth++; depth > levels {
				return true
			}
		case '}', ']':
			depth--
		}
	}
	return false
}
