package bench

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Node is a node as its kubelet and the cloud's controller leave it.
func Node(name string) *corev1.Node { return nodeObject(name) }

// WebPod is a web server as a Deployment makes them: the i-th of many that differ.
func WebPod(i int) *corev1.Pod { return seededPod(i, SeedConfig{Namespaces: 1, Nodes: 1}) }

// RunningStatus is what a kubelet reports of a pod once it runs.
func RunningStatus(pod *corev1.Pod) corev1.PodStatus { return runningStatus(pod) }

// EncodeProtobuf encodes an object of one of Kubernetes' own types as clients send it.
func EncodeProtobuf(obj runtime.Object) []byte { return encodeProtobuf(obj) }
