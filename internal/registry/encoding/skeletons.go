package encoding

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/registry/wire"
)

// protobufMagic begins values in upstream's protobuf envelope.
const protobufMagic = "k8s\x00"

// Slots of the contents that are read out of a value while its skeleton is made.
const (
	slotObject = 1 + iota
	slotLabelKey
	slotLabelValue
	slotName
	slotNamespace
	slotNodeName
	slotPodIP
	slotNominatedNode
)

// skeletonsOf says what the skeletons of a resource leave out, and which selectable
// fields are among that; nil for resources that have no skeletons. A field may be left
// out when upstream's defaults and conversions for the kind (kubernetes pkg/apis)
// copy it without looking at it, or compare it with nothing but other Names. That is worth
// its while for kinds with many objects that have much in common.
func skeletonsOf(gr schema.GroupResource) (*wire.Fields, map[int]string) {
	if gr != (schema.GroupResource{Resource: "pods"}) {
		return nil, nil
	}
	metadata := metadataLayout()
	// Conversion looks for annotations by their keys (kubernetes
	// pkg/apis/core/v1/conversion.go, dropInitContainerAnnotations).
	metadata.Fields[12] = message(wire.Fields{2: opaque()})
	object := wire.Fields{1: metadata, 2: podSpecLayout(), 3: podStatusLayout()}
	// runtime.Unknown around it
	return &wire.Fields{2: {Role: wire.Message, Slot: slotObject, Fields: object}}, map[int]string{
		slotName: "metadata.name", slotNamespace: "metadata.namespace",
		slotNodeName: "spec.nodeName", slotPodIP: "status.podIP", slotNominatedNode: "status.nominatedNodeName",
	}
}

func message(fields wire.Fields) *wire.Layout {
	return &wire.Layout{Role: wire.Message, Fields: fields}
}

func name() *wire.Layout   { return &wire.Layout{Role: wire.Name} }
func opaque() *wire.Layout { return &wire.Layout{Role: wire.Opaque} }
func moment() *wire.Layout { return &wire.Layout{Role: wire.Time} }

// metadataLayout is that of ObjectMeta (apimachinery pkg/apis/meta/v1/generated.proto).
// Annotations are part of the skeleton: conversions of some kinds read them.
func metadataLayout() *wire.Layout {
	return message(wire.Fields{
		1: {Role: wire.Name, Slot: slotName},
		3: {Role: wire.Name, Slot: slotNamespace},
		5: name(),   // uid
		8: moment(), // creationTimestamp
		9: moment(), // deletionTimestamp
		11: message(wire.Fields{ // labels
			1: {Role: wire.Kept, Slot: slotLabelKey},
			2: {Role: wire.Name, Slot: slotLabelValue},
		}),
		13: message(wire.Fields{3: name(), 4: name()}), // ownerReferences: name, uid
		17: message(wire.Fields{ // managedFields
			4: moment(),
			7: message(wire.Fields{1: opaque()}), // fieldsV1
		}),
	})
}

// podSpecLayout is that of PodSpec (api core/v1/generated.proto).
func podSpecLayout() *wire.Layout {
	container := wire.Fields{9: message(wire.Fields{1: name()})} // volumeMounts: name
	return message(wire.Fields{
		1:  message(wire.Fields{1: name()}), // volumes
		2:  message(container),
		10: {Role: wire.Name, Slot: slotNodeName},
		16: name(), // hostname
		20: message(container),
	})
}

// podStatusLayout is that of PodStatus.
func podStatusLayout() *wire.Layout {
	ip := message(wire.Fields{1: name()})
	state := message(wire.Fields{
		2: message(wire.Fields{1: moment()}),                         // running: startedAt
		3: message(wire.Fields{5: moment(), 6: moment(), 7: name()}), // terminated: startedAt, finishedAt, containerID
	})
	container := message(wire.Fields{2: state, 3: state, 8: name()}) // containerID
	return message(wire.Fields{
		2:  message(wire.Fields{3: moment(), 4: moment()}), // conditions: lastProbeTime, lastTransitionTime
		5:  name(),                                         // hostIP
		6:  {Role: wire.Name, Slot: slotPodIP},
		7:  moment(), // startTime
		8:  container,
		10: container, // of init containers
		11: {Role: wire.Name, Slot: slotNominatedNode},
		12: ip, // podIPs
		16: ip, // hostIPs
	})
}
