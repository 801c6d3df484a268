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
)

// hasTokens lists the resources whose values have fingerprints: kinds with many objects. Their defaults, conversions
// and selectable fields (kubernetes pkg/apis, pkg/registry) were reviewed for tokensOf.
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
type roles map[string]role

// tokensOf lists the fields that hold tokens, in addition to all times. A field may hold tokens if upstream's
// defaults and conversions copy it without reading it; a name may also be compared with other names. An empty
// field is no token. In maps only the values are tokens: encoders sort by keys, and conversions look for keys.
var tokensOf = map[reflect.Type]roles{
	reflect.TypeFor[metav1.ObjectMeta](): {
		"Name": nameToken, "GenerateName": nameToken, "Namespace": nameToken, "UID": nameToken,
		"ResourceVersion": opaqueToken, "Labels": nameToken, "Annotations": opaqueToken,
	},
	reflect.TypeFor[metav1.OwnerReference](): {"Name": nameToken, "UID": nameToken},
	reflect.TypeFor[metav1.FieldsV1]():       {"Raw": opaqueToken},
	reflect.TypeFor[metav1.LabelSelector]():  {"MatchLabels": nameToken},

	reflect.TypeFor[corev1.PodSpec](): {
		"ServiceAccountName": nameToken, "DeprecatedServiceAccount": nameToken, "NodeName": nameToken,
		"Hostname": nameToken, "Subdomain": nameToken, "NodeSelector": opaqueToken,
	},
	reflect.TypeFor[corev1.Volume]():                            {"Name": nameToken},
	reflect.TypeFor[corev1.LocalObjectReference]():              {"Name": nameToken},
	reflect.TypeFor[corev1.SecretVolumeSource]():                {"SecretName": nameToken},
	reflect.TypeFor[corev1.PersistentVolumeClaimVolumeSource](): {"ClaimName": nameToken},
	// Image is missing, because the default of ImagePullPolicy depends on it (core/v1/defaults.go).
	reflect.TypeFor[corev1.Container]():                {"Command": opaqueToken, "Args": opaqueToken, "WorkingDir": opaqueToken},
	reflect.TypeFor[corev1.EnvVar]():                   {"Name": opaqueToken, "Value": opaqueToken},
	reflect.TypeFor[corev1.VolumeMount]():              {"Name": nameToken, "MountPath": opaqueToken, "SubPath": opaqueToken},
	reflect.TypeFor[corev1.ExecAction]():               {"Command": opaqueToken},
	reflect.TypeFor[corev1.PodStatus]():                {"Message": opaqueToken, "Reason": opaqueToken, "HostIP": nameToken, "PodIP": nameToken, "NominatedNodeName": nameToken},
	reflect.TypeFor[corev1.PodCondition]():             {"Reason": opaqueToken, "Message": opaqueToken},
	reflect.TypeFor[corev1.PodIP]():                    {"IP": nameToken},
	reflect.TypeFor[corev1.HostIP]():                   {"IP": nameToken},
	reflect.TypeFor[corev1.ContainerStatus]():          {"Image": opaqueToken, "ImageID": opaqueToken, "ContainerID": nameToken},
	reflect.TypeFor[corev1.ContainerStateWaiting]():    {"Message": opaqueToken},
	reflect.TypeFor[corev1.ContainerStateTerminated](): {"Message": opaqueToken, "ContainerID": nameToken},

	reflect.TypeFor[corev1.NodeSpec]():       {"PodCIDR": nameToken, "PodCIDRs": nameToken, "ProviderID": opaqueToken},
	reflect.TypeFor[corev1.NodeAddress]():    {"Address": opaqueToken},
	reflect.TypeFor[corev1.NodeCondition]():  {"Reason": opaqueToken, "Message": opaqueToken},
	reflect.TypeFor[corev1.NodeSystemInfo](): {"MachineID": opaqueToken, "SystemUUID": opaqueToken, "BootID": opaqueToken},

	reflect.TypeFor[corev1.ObjectReference](): {
		"Namespace": nameToken, "Name": nameToken, "UID": nameToken, "ResourceVersion": opaqueToken, "FieldPath": opaqueToken,
	},
	reflect.TypeFor[corev1.Event]():       {"Message": opaqueToken, "ReportingInstance": opaqueToken},
	reflect.TypeFor[corev1.EventSource](): {"Host": opaqueToken},
	reflect.TypeFor[eventsv1.Event]():     {"Note": opaqueToken, "ReportingInstance": opaqueToken},

	reflect.TypeFor[corev1.ConfigMap]():       {"Data": opaqueToken, "BinaryData": opaqueToken},
	reflect.TypeFor[corev1.Secret]():          {"Data": opaqueToken},
	reflect.TypeFor[corev1.EndpointAddress](): {"IP": opaqueToken, "Hostname": opaqueToken, "NodeName": opaqueToken},
	reflect.TypeFor[discoveryv1.Endpoint]():   {"Addresses": opaqueToken, "Hostname": opaqueToken, "NodeName": opaqueToken, "Zone": opaqueToken},
	reflect.TypeFor[discoveryv1.ForZone]():    {"Name": opaqueToken},

	reflect.TypeFor[corev1.ReplicationControllerSpec](): {"Selector": nameToken},
	reflect.TypeFor[appsv1.DeploymentCondition]():       {"Reason": opaqueToken, "Message": opaqueToken},
	reflect.TypeFor[appsv1.ReplicaSetCondition]():       {"Reason": opaqueToken, "Message": opaqueToken},
	reflect.TypeFor[appsv1.StatefulSetStatus]():         {"CurrentRevision": nameToken, "UpdateRevision": nameToken},

	reflect.TypeFor[coordinationv1.LeaseSpec]():                  {"HolderIdentity": opaqueToken},
	reflect.TypeFor[autoscalingv1.CrossVersionObjectReference](): {"Name": opaqueToken},
	reflect.TypeFor[autoscalingv2.CrossVersionObjectReference](): {"Name": opaqueToken},
}

// readsAnnotations lists the kinds whose conversions read the values of annotations
// (kubernetes pkg/apis/apps/v1/conversion.go, pkg/apis/autoscaling/v1/conversion.go).
var readsAnnotations = map[string]bool{"Deployment": true, "DaemonSet": true, "HorizontalPodAutoscaler": true}

// objectLayouts returns the layouts of an object's message, nil if no field holds tokens.
func objectLayouts(obj runtime.Object) *layouts {
	t := reflect.TypeOf(obj).Elem()
	all := messageLayouts(t, nil)
	if all == nil {
		return nil
	}
	if f, ok := t.FieldByName("ObjectMeta"); ok && readsAnnotations[t.Name()] {
		annotations, _ := f.Type.FieldByName("Annotations")
		all[fieldNumber(f)].inner[fieldNumber(annotations)] = nil
	}
	return all
}

// messageLayouts returns the layouts of the messages of a type, nil if no field holds tokens. A type within itself has
// no layouts.
func messageLayouts(t reflect.Type, within []reflect.Type) *layouts {
	if slices.Contains(within, t) {
		return nil
	}
	within = append(within[:len(within):len(within)], t)
	var all layouts
	some := false
	for f := range t.Fields() {
		n := fieldNumber(f)
		if n <= 0 || n >= len(all) {
			continue
		}
		if all[n] = fieldLayout(f.Type, tokensOf[t][f.Name], within); all[n] != nil {
			some = true
		}
	}
	if !some {
		return nil
	}
	return &all
}

// fieldLayout returns the layout of a field of type t, whose contents have role r. It is nil if the field is kept.
func fieldLayout(t reflect.Type, r role, within []reflect.Type) *layout {
	if t.Kind() == reflect.Map {
		// A key must have a length: upstream's decoder reads a length from a key of any wire type, and may then read
		// bytes after the entry.
		const key, value = 1, 2
		return &layout{role: messageField, inner: &layouts{key: {role: literalField}, value: {role: r}}}
	}
	if r != literalField {
		return &layout{role: r}
	}
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[metav1.Time]():
		return &layout{role: timeToken}
	case t == reflect.TypeFor[metav1.MicroTime]():
		return &layout{role: microTimeToken}
	case t.Kind() != reflect.Struct:
		return nil
	}
	if inner := messageLayouts(t, within); inner != nil {
		return &layout{role: messageField, inner: inner}
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
