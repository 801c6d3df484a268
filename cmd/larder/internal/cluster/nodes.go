package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// podRange has 256 pod addresses for each of maxNodes nodes.
	podRange = "10.128.0.0/9"
	maxNodes = 1 << 15
	zones    = 3

	// fakeAnnotation marks the nodes that kwok simulates. fakeLabel marks the nodes that makeNodes manages.
	fakeAnnotation, fakeLabel, fakeValue = "kwok.x-k8s.io/node", "larder.io/node", "fake"
)

// makeNodes creates missing nodes, and removes nodes beyond Cluster.Nodes.
func (c *Cluster) makeNodes(ctx context.Context, client kubernetes.Interface) error {
	nodes := client.CoreV1().Nodes()
	there, err := nodes.List(ctx, metav1.ListOptions{LabelSelector: fakeLabel + "=" + fakeValue})
	if err != nil {
		return fmt.Errorf("cluster: nodes: %w", err)
	}
	missing := make(map[string]*corev1.Node)
	for i := range c.Nodes {
		n := node(i)
		missing[n.Name] = n
	}
	for _, n := range there.Items {
		if _, wanted := missing[n.Name]; wanted {
			delete(missing, n.Name)
		} else if err := nodes.Delete(ctx, n.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("cluster: nodes: %w", err)
		}
	}
	for _, n := range missing {
		if _, err := nodes.Create(ctx, n, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("cluster: nodes: %w", err)
		}
	}
	return nil
}

// node returns the i-th node, with its range of pod addresses. kube-controller-manager might otherwise assign two ranges
// to a node whose status changes meanwhile, and log an error.
func node(i int) *corev1.Node {
	name, pods := fmt.Sprintf("node-%d", i), fmt.Sprintf("10.%d.%d.0/24", 128+i>>8, i&0xff)
	size := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("32"),
		corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Annotations: map[string]string{fakeAnnotation: fakeValue},
			Labels: map[string]string{
				fakeLabel: fakeValue, corev1.LabelHostname: name,
				corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
				corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%zones),
			},
		},
		Spec:   corev1.NodeSpec{PodCIDR: pods, PodCIDRs: []string{pods}},
		Status: corev1.NodeStatus{Capacity: size, Allocatable: size},
	}
}
