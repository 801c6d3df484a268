package bootstrap_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

//lint:file-ignore SA1019 Endpoints are deprecated, but kube-apiserver and its clients still write them.

func names(t *testing.T, list runtime.Object) []string {
	t.Helper()
	var out []string
	err := meta.EachListItem(list, func(o runtime.Object) error {
		accessor, err := meta.Accessor(o)
		if err == nil {
			out = append(out, accessor.GetName())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func endpointIPs(o runtime.Object) []string {
	endpoints, ok := o.(*corev1.Endpoints)
	if !ok {
		return []string{"not endpoints"}
	}
	var ips []string
	for _, subset := range endpoints.Subsets {
		for _, address := range subset.Addresses {
			ips = append(ips, address.IP)
		}
	}
	return ips
}
