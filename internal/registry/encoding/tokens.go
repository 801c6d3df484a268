package encoding

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/registry/wire"
)

// hasTokens lists the resources whose values have fingerprints: kinds with many objects. Their defaults,
// conversions and selectable fields were reviewed for the fields that they read (kubernetes pkg/apis,
// pkg/registry).
var hasTokens = map[schema.GroupResource]bool{
	{Resource: "pods"}:                                           true,
	{Resource: "events"}:                                         true,
	{Resource: "configmaps"}:                                     true,
	{Resource: "secrets"}:                                        true,
	{Resource: "endpoints"}:                                      true,
	{Resource: "replicationcontrollers"}:                         true,
	{Resource: "nodes"}:                                          true,
	{Group: "apps", Resource: "replicasets"}:                     true,
	{Group: "apps", Resource: "deployments"}:                     true,
	{Group: "apps", Resource: "daemonsets"}:                      true,
	{Group: "apps", Resource: "statefulsets"}:                    true,
	{Group: "batch", Resource: "jobs"}:                           true,
	{Group: "batch", Resource: "cronjobs"}:                       true,
	{Group: "autoscaling", Resource: "horizontalpodautoscalers"}: true,
	{Group: "coordination.k8s.io", Resource: "leases"}:           true,
	{Group: "discovery.k8s.io", Resource: "endpointslices"}:      true,
	{Group: "events.k8s.io", Resource: "events"}:                 true,
}

// roles are the roles of the fields of a type, by their names in Go.
type roles map[string]wire.Role

// tokensOf lists the fields that hold tokens, in addition to all times. A field may hold tokens if upstream's
// defaults and conversions copy it without reading it; a Name may also be compared with other Names. An empty
// field is no token. In maps only the values are tokens: encoders sort by keys, and conversions look for keys.
var tokensOf = map[reflect.Type]roles{
	reflect.TypeFor[metav1.ObjectMeta](): {
		"Name": wire.Name, "GenerateName": wire.Name, "Namespace": wire.Name, "UID": wire.Name,
		"ResourceVersion": wire.Opaque, "Labels": wire.Name, "Annotations": wire.Opaque,
	},
	reflect.TypeFor[metav1.OwnerReference](): {"Name": wire.Name, "UID": wire.Name},
	reflect.TypeFor[metav1.FieldsV1]():       {"Raw": wire.Opaque},
	reflect.TypeFor[metav1.LabelSelector]():  {"MatchLabels": wire.Name},

	reflect.TypeFor[corev1.PodSpec](): {
		"ServiceAccountName": wire.Name, "DeprecatedServiceAccount": wire.Name, "NodeName": wire.Name,
		"Hostname": wire.Name, "Subdomain": wire.Name, "NodeSelector": wire.Opaque,
	},
	reflect.TypeFor[corev1.Volume]():                            {"Name": wire.Name},
	reflect.TypeFor[corev1.LocalObjectReference]():              {"Name": wire.Name},
	reflect.TypeFor[corev1.SecretVolumeSource]():                {"SecretName": wire.Name},
	reflect.TypeFor[corev1.PersistentVolumeClaimVolumeSource](): {"ClaimName": wire.Name},
	// Image is missing, because the default of ImagePullPolicy depends on it (core/v1/defaults.go).
	reflect.TypeFor[corev1.Container]():                {"Command": wire.Opaque, "Args": wire.Opaque, "WorkingDir": wire.Opaque},
	reflect.TypeFor[corev1.EnvVar]():                   {"Name": wire.Opaque, "Value": wire.Opaque},
	reflect.TypeFor[corev1.VolumeMount]():              {"Name": wire.Name, "MountPath": wire.Opaque, "SubPath": wire.Opaque},
	reflect.TypeFor[corev1.ExecAction]():               {"Command": wire.Opaque},
	reflect.TypeFor[corev1.PodStatus]():                {"Message": wire.Opaque, "Reason": wire.Opaque, "HostIP": wire.Name, "PodIP": wire.Name, "NominatedNodeName": wire.Name},
	reflect.TypeFor[corev1.PodCondition]():             {"Reason": wire.Opaque, "Message": wire.Opaque},
	reflect.TypeFor[corev1.PodIP]():                    {"IP": wire.Name},
	reflect.TypeFor[corev1.HostIP]():                   {"IP": wire.Name},
	reflect.TypeFor[corev1.ContainerStatus]():          {"Image": wire.Opaque, "ImageID": wire.Opaque, "ContainerID": wire.Name},
	reflect.TypeFor[corev1.ContainerStateWaiting]():    {"Message": wire.Opaque},
	reflect.TypeFor[corev1.ContainerStateTerminated](): {"Message": wire.Opaque, "ContainerID": wire.Name},

	reflect.TypeFor[corev1.NodeSpec]():       {"PodCIDR": wire.Name, "PodCIDRs": wire.Name, "ProviderID": wire.Opaque},
	reflect.TypeFor[corev1.NodeAddress]():    {"Address": wire.Opaque},
	reflect.TypeFor[corev1.NodeCondition]():  {"Reason": wire.Opaque, "Message": wire.Opaque},
	reflect.TypeFor[corev1.NodeSystemInfo](): {"MachineID": wire.Opaque, "SystemUUID": wire.Opaque, "BootID": wire.Opaque},

	reflect.TypeFor[corev1.ObjectReference](): {
		"Namespace": wire.Name, "Name": wire.Name, "UID": wire.Name, "ResourceVersion": wire.Opaque, "FieldPath": wire.Opaque,
	},
	reflect.TypeFor[corev1.Event]():       {"Message": wire.Opaque, "ReportingInstance": wire.Opaque},
	reflect.TypeFor[corev1.EventSource](): {"Host": wire.Opaque},
	reflect.TypeFor[eventsv1.Event]():     {"Note": wire.Opaque, "ReportingInstance": wire.Opaque},

	reflect.TypeFor[corev1.ConfigMap]():       {"Data": wire.Opaque, "BinaryData": wire.Opaque},
	reflect.TypeFor[corev1.Secret]():          {"Data": wire.Opaque},
	reflect.TypeFor[corev1.EndpointAddress](): {"IP": wire.Opaque, "Hostname": wire.Opaque, "NodeName": wire.Opaque},
	reflect.TypeFor[discoveryv1.Endpoint]():   {"Addresses": wire.Opaque, "Hostname": wire.Opaque, "NodeName": wire.Opaque, "Zone": wire.Opaque},
	reflect.TypeFor[discoveryv1.ForZone]():    {"Name": wire.Opaque},

	reflect.TypeFor[corev1.ReplicationControllerSpec](): {"Selector": wire.Name},
	reflect.TypeFor[appsv1.DeploymentCondition]():       {"Reason": wire.Opaque, "Message": wire.Opaque},
	reflect.TypeFor[appsv1.ReplicaSetCondition]():       {"Reason": wire.Opaque, "Message": wire.Opaque},
	reflect.TypeFor[appsv1.StatefulSetStatus]():         {"CurrentRevision": wire.Name, "UpdateRevision": wire.Name},

	reflect.TypeFor[coordinationv1.LeaseSpec]():                  {"HolderIdentity": wire.Opaque},
	reflect.TypeFor[autoscalingv1.CrossVersionObjectReference](): {"Name": wire.Opaque},
	reflect.TypeFor[autoscalingv2.CrossVersionObjectReference](): {"Name": wire.Opaque},
}

// readsAnnotations lists the kinds whose conversions read the values of annotations
// (kubernetes pkg/apis/apps/v1/conversion.go, pkg/apis/autoscaling/v1/conversion.go).
var readsAnnotations = map[string]bool{"Deployment": true, "DaemonSet": true, "HorizontalPodAutoscaler": true}

// objectTokens returns the fields of an object that hold tokens.
func objectTokens(obj runtime.Object) *wire.Fields {
	t := reflect.TypeOf(obj).Elem()
	all := messageTokens(t, nil)
	if all == nil {
		return nil
	}
	if f, ok := t.FieldByName("ObjectMeta"); ok && readsAnnotations[t.Name()] {
		annotations, _ := f.Type.FieldByName("Annotations")
		all[fieldNumber(f)].Fields[fieldNumber(annotations)] = nil
	}
	return all
}

// messageTokens returns the fields of a type that hold tokens, nil if there are none. It does not enter a
// type within itself.
func messageTokens(t reflect.Type, within []reflect.Type) *wire.Fields {
	if slices.Contains(within, t) {
		return nil
	}
	within = append(within[:len(within):len(within)], t)
	var all wire.Fields
	some := false
	for i := range t.NumField() {
		f := t.Field(i)
		n := fieldNumber(f)
		if n <= 0 || n >= len(all) {
			continue
		}
		if all[n] = fieldTokens(f.Type, tokensOf[t][f.Name], within); all[n] != nil {
			some = true
		}
	}
	if !some {
		return nil
	}
	return &all
}

// fieldTokens is messageTokens for a field.
func fieldTokens(t reflect.Type, role wire.Role, within []reflect.Type) *wire.Layout {
	if t.Kind() == reflect.Map {
		// Upstream's decoder takes a key of any wire type for a text, and reads on behind the
		// entry then.
		const key, value = 1, 2
		return &wire.Layout{Role: wire.Message, Fields: wire.Fields{key: {Role: wire.Kept}, value: {Role: role}}}
	}
	if role != wire.Kept {
		return &wire.Layout{Role: role}
	}
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[metav1.Time]():
		return &wire.Layout{Role: wire.Time}
	case t == reflect.TypeFor[metav1.MicroTime]():
		return &wire.Layout{Role: wire.MicroTime}
	case t.Kind() != reflect.Struct:
		return nil
	}
	if fields := messageTokens(t, within); fields != nil {
		return &wire.Layout{Role: wire.Message, Fields: *fields}
	}
	return nil
}

// fieldNumber returns the number of a field in protobuf, 0 for one that is not encoded or is
// no message, text or bytes.
func fieldNumber(f reflect.StructField) int {
	kind, rest, _ := strings.Cut(f.Tag.Get("protobuf"), ",")
	number, _, _ := strings.Cut(rest, ",")
	n, err := strconv.Atoi(number)
	if err != nil || kind != "bytes" {
		return 0
	}
	return n
}
