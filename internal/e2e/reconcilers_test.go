package e2e_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

// published returns the endpoints that a server with an endpoint reconciler publishes, while it serves and after it has
// stopped.
func published(p *plane, stock bool, kind string, port int) (lines []string) {
	p.t.Helper()
	prefix := fmt.Sprintf("/%s-%v", kind, stock)
	m := p.member(stock, "", port, "--etcd-prefix="+prefix, "--advertise-address=192.0.2.1", "--apiserver-count=2", "--endpoint-reconciler-type="+kind).start()
	talk := &peering{plane: p}
	const of = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
	if kind != "none" {
		m.Eventually(p.t, "is among the endpoints", func() error {
			if code, body := m.ask(http.MethodGet, of, "", nil); code != http.StatusOK || !strings.Contains(body, "192.0.2.1") {
				return fmt.Errorf("%d %s", code, body)
			}
			return nil
		})
	}
	talk.ask(m, http.MethodGet, of, "", nil)
	talk.ask(m, http.MethodGet, "/api/v1/namespaces/default/endpoints/kubernetes", "", nil)
	lease := prefix + "/masterleases/192.0.2.1"
	talk.logf("a lease: %v", valueAt(p.t, p.url, lease) != nil)
	if err := m.Terminate(p.t); err != nil {
		p.t.Errorf("%v\n%s", err, m.Output())
	}
	talk.logf("a lease is left: %v", valueAt(p.t, p.url, lease) != nil)
	for _, key := range []string{"services/endpoints/default/kubernetes", "endpointslices/default/kubernetes"} {
		stored := string(valueAt(p.t, p.url, prefix+"/"+key))
		talk.logf("%s: left %v, with the address %v", key, stored != "", strings.Contains(stored, "192.0.2.1"))
	}
	return talk.lines
}

// TestEndpointReconcilers checks that a server adds itself to and removes itself from the endpoints of the kubernetes
// service, according to --endpoint-reconciler-type, as kube-apiserver does.
func TestEndpointReconcilers(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	for kind, want := range map[string]string{"lease": "a lease: true", "master-count": "a lease: false", "none": "404"} {
		port := proctest.Port(t)
		lines := published(p, false, kind, port)
		if !strings.Contains(strings.Join(lines, "\n"), want) {
			t.Errorf("%s: no %s in\n%s", kind, want, strings.Join(lines, "\n"))
		}
		if *stockBinary == "" {
			continue
		}
		if stock := published(p, true, kind, port); !slices.Equal(stock, lines) {
			t.Errorf("%s: kube-apiserver\n%s\nLarder\n%s", kind, strings.Join(stock, "\n"), strings.Join(lines, "\n"))
		}
	}
}

// TestServersStopWithoutEtcd checks that a server whose etcd is unavailable reports that, and exits at a signal.
func TestServersStopWithoutEtcd(t *testing.T) {
	t.Parallel()
	url, etcd := startEtcd(t, filepath.Join(t.TempDir(), "data"))
	p := &plane{t: t, url: url, args: planeFiles(t)}
	m := p.member(false, "", proctest.Port(t), "--endpoint-reconciler-type=lease").start()
	etcd.Kill()
	// The response takes 20 s. The reconciler calls etcd within ten seconds.
	if code, body := m.ask(http.MethodGet, "/api/v1/componentstatuses", "", nil); code != http.StatusOK || !strings.Contains(body, "etcd-0") || !strings.Contains(body, `"status":"False"`) {
		t.Errorf("%d %s", code, body)
	}
	if err := m.Terminate(t); err != nil {
		t.Errorf("%v\n%s", err, m.Output())
	}
}
