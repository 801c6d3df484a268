package auth

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// mask selects fields of a message by number. A field with a nil mask is dropped, a field whose mask is
// whole is kept unchanged.
type mask [maxField + 1]*mask

// maxField is the largest field number in newPodMask.
const maxField = 39

// newPodMask returns the mask of the fields of a pod that node.Graph.AddPod reads: its node, and the names
// of the objects that it refers to. That is less than a tenth of most pods. whole marks a field that is kept
// unchanged.
func newPodMask() (pod, whole *mask) {
	whole = new(mask)
	variable := &mask{3: whole}                // EnvVar: valueFrom
	container := &mask{7: variable, 19: whole} // env, envFrom
	ephemeral := &mask{1: container}           // the container of an ephemeral one
	return &mask{
		1: {1: whole, 3: whole, 5: whole, 12: whole}, // name, namespace, uid, annotations
		2: {
			1: whole, 2: container, 20: container, 34: ephemeral, // volumes and containers
			8: whole, 10: whole, 15: whole, 39: whole, // serviceAccountName, nodeName, imagePullSecrets, resourceClaims
		},
		3: {15: whole, 18: whole}, // statuses of resource claims
	}, whole
}

// appendMasked appends to dst the fields of message that keep names.
func appendMasked(dst, message []byte, keep, whole *mask) ([]byte, error) {
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return dst, fmt.Errorf("auth: malformed message: %w", protowire.ParseError(tag))
		}
		size := protowire.ConsumeFieldValue(number, kind, message[tag:])
		if size < 0 {
			return dst, fmt.Errorf("auth: malformed field %d: %w", number, protowire.ParseError(size))
		}
		field := message[:tag+size]
		message = message[tag+size:]
		if number > maxField || keep[number] == nil {
			continue
		}
		if keep[number] == whole || kind != protowire.BytesType {
			dst = append(dst, field...)
			continue
		}
		content, _ := protowire.ConsumeBytes(field[tag:])
		inner, err := appendMasked(nil, content, keep[number], whole)
		if err != nil {
			return dst, err
		}
		dst = protowire.AppendBytes(append(dst, field[:tag]...), inner)
	}
	return dst, nil
}
