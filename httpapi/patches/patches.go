// Package patches applies JSON patches, JSON merge patches and strategic merge patches, and reads applied
// configurations, as upstream's handler does (apiserver pkg/endpoints/handlers/patch.go).
//
// [Patch.Apply] makes a new object from a stored one. Most merge patches of kubelets and controllers name
// few fields, and only those fields are converted.
//
// The package limits the cost of a patch. Upstream's library parses and writes a nested value once for
// each level above it, so its time grows with the product of depth and size. The largest and deepest
// body that JSON allows would take minutes. [Check] rejects patches that are deeper than any Kubernetes
// object. The deepest accepted patch takes about ten times as long as a flat one of the same size.
// [BoundCopies] limits the copies of a JSON patch. Patches of other types decode in linear time.
//
// An applied configuration is YAML. Most clients send JSON, which [Applied] mostly decodes as JSON.
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
	// MaxDepth limits the nesting of a patch, and the depth of the paths of a JSON patch. CRDs are the
	// deepest objects of Kubernetes; the largest published ones have some 40 levels.
	MaxDepth = 100

	// maxMoved limits the sum of the levels of the targets of all moves of a JSON patch. A moved value
	// keeps the levels that the library has parsed, so moves add up.
	maxMoved = 500

	// maxOperations is upstream's limit (apiserver pkg/endpoints/handlers/patch.go).
	maxOperations = 10000

	// maxCopied limits the bytes that the copies of one JSON patch may add (apiserver
	// pkg/server/config.go). Without it, few operations could fill the memory.
	maxCopied = 3 << 20
)

// BoundCopies limits the copies of JSON patches to maxCopied. The limit is a variable of the library, so it
// holds for the whole process.
func BoundCopies() { atomic.CompareAndSwapInt64(&jsonpatch.AccumulatedCopySizeLimit, 0, maxCopied) }

// Check returns the check that a patch of a type must pass before it is applied, nil if applying is always
// cheap. The error of the check is a bad request.
func Check(kind types.PatchType) func(data []byte) error {
	switch kind {
	case types.MergePatchType:
		return checkMergePatch
	case types.JSONPatchType:
		return checkJSONPatch
	}
	return nil
}

// refusal is the error of a patch that is rejected.
func refusal(format string, args ...any) error {
	return apierrors.NewBadRequest("error decoding patch: " + fmt.Sprintf(format, args...))
}

func checkMergePatch(data []byte) error {
	if deeper(data, MaxDepth) {
		return refusal("nested more than %d deep", MaxDepth)
	}
	return nil
}

// checkJSONPatch passes patches that the library cannot decode: upstream rejects them.
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
