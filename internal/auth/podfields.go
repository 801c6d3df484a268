package auth

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/larder-io/larder/internal/registry/wire"
)

// mask selects fields of a protobuf message by number. A field with a nil mask is dropped, and a field whose mask is
// whole is kept unchanged. Other masks apply to the message that the field holds.
type mask [maxField + 1]*mask

// maxField is the largest field number in newPodMask.
const maxField = 39

// newPodMask returns the mask of the fields of a pod that node.Graph.AddPod reads: its node, and the names of the
// objects that it refers to.
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

// appendMasked appends to dst the fields of message that keep selects.
func appendMasked(dst, message []byte, keep, whole *mask) ([]byte, error) {
	for f, err := range wire.Fields(message) {
		switch {
		case err != nil:
			return dst, fmt.Errorf("auth: %w", err)
		case f.Number > maxField || keep[f.Number] == nil:
			continue
		case keep[f.Number] == whole || f.Kind != protowire.BytesType:
			dst = append(dst, message[f.Start:f.Stop]...)
			continue
		}
		inner, err := appendMasked(nil, f.Content, keep[f.Number], whole)
		if err != nil {
			return dst, err
		}
		dst = protowire.AppendBytes(protowire.AppendTag(dst, protowire.Number(f.Number), f.Kind), inner)
	}
	return dst, nil
}
