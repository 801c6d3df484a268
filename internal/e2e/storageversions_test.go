package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/google/go-cmp/cmp"

	"github.com/larder-io/larder/internal/proctest"
)

// publishesVersions are flags that make a server publish its storage versions, for all resources.
var publishesVersions = []string{"--feature-gates=APIServerIdentity=true,StorageVersionAPI=true", "--runtime-config=api/all=true"}

// storageVersions returns the StorageVersions that the servers of an etcd have published, by resource, without parts
// that vary between runs.
func (m *member) storageVersions() map[string]string {
	m.t.Helper()
	list, err := kubernetes.NewForConfigOrDie(m.config()).InternalV1alpha1().StorageVersions().List(m.t.Context(), metav1.ListOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	all := make(map[string]string)
	for _, v := range list.Items {
		for i := range v.Status.StorageVersions {
			slices.Sort(v.Status.StorageVersions[i].ServedVersions) // upstream's order is random
		}
		slices.SortFunc(v.Status.StorageVersions, func(a, b apiserverinternalv1alpha1.ServerStorageVersion) int {
			return strings.Compare(a.APIServerID, b.APIServerID)
		})
		for i := range v.Status.Conditions {
			v.Status.Conditions[i].LastTransitionTime = metav1.Time{}
		}
		text, err := json.MarshalIndent(struct {
			Generation int64
			Status     apiserverinternalv1alpha1.StorageVersionStatus
		}{v.Generation, v.Status}, "", " ")
		if err != nil {
			m.t.Fatal(err)
		}
		all[v.Name] = string(text)
	}
	return all
}

// TestStorageVersions checks that the servers of one etcd together publish the versions in which they store objects, as
// kube-apiserver does. With -stock, one of the servers is kube-apiserver, and both must agree.
func TestStorageVersions(t *testing.T) {
	t.Parallel()
	if out, err := onHost("elsewhere", "/bin/hostname").CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "elsewhere" {
		t.Skipf("this system does not allow a UTS namespace with another host name: %v %s", err, out)
	}
	p := newPlane(t, publishesVersions...)
	ports := proctest.Ports(t, 2)
	first := p.member(*stockBinary != "", "first", ports[0]).start()
	alone := first.storageVersions()
	second := p.member(false, "second", ports[1]).start()
	if diff := cmp.Diff(withServer(alone, "second"), second.storageVersions()); diff != "" {
		t.Errorf("StorageVersions of both servers: -want (from the first server's) +got\n%s", diff)
	}
	if code, body := second.ask(http.MethodPost, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"c"}}`, nil); code != http.StatusCreated {
		t.Error(code, body)
	}
	if code, body := second.ask(http.MethodGet, "/readyz?verbose", "", nil); code != 200 || !strings.Contains(body, "[+]poststarthook/apiservice-discovery-controller ok\n[+]poststarthook/built-in-resources-storage-version-updater ok\n[+]poststarthook/kube-apiserver-autoregistration ok") {
		t.Error(code, body)
	}
	stored, err := kubernetes.NewForConfigOrDie(second.config()).Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range stored {
		group, _, found := strings.Cut(list.GroupVersion, "/")
		if !found {
			group = "core"
		}
		for _, r := range list.APIResources {
			_, known := alone[group+"."+r.Name]
			if kept := slices.Contains(r.Verbs, "watch") && group != "events.k8s.io"; kept != known {
				t.Errorf("%s %s: stored versions %v, published %v", list.GroupVersion, r.Name, kept, known)
			}
		}
	}
}

// withServer adds a server to each object, with the versions of the first server.
func withServer(all map[string]string, host string) map[string]string {
	both := make(map[string]string)
	for name, text := range all {
		var v struct {
			Generation int64
			Status     apiserverinternalv1alpha1.StorageVersionStatus
		}
		if err := json.Unmarshal([]byte(text), &v); err != nil || len(v.Status.StorageVersions) != 1 {
			both[name] = fmt.Sprint(err, text)
			continue
		}
		another := v.Status.StorageVersions[0]
		another.APIServerID = serverIDOf(host)
		v.Status.StorageVersions = append(v.Status.StorageVersions, another)
		slices.SortFunc(v.Status.StorageVersions, func(a, b apiserverinternalv1alpha1.ServerStorageVersion) int {
			return strings.Compare(a.APIServerID, b.APIServerID)
		})
		out, err := json.MarshalIndent(v, "", " ")
		if err != nil {
			return nil
		}
		both[name] = string(out)
	}
	return both
}
