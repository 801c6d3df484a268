package e2e_test

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/larder-io/larder/internal/proctest"
)

//lint:file-ignore SA1019 Endpoints are deprecated, but kube-apiserver and its clients still write them.

// peering is two servers with one etcd. The second one does not serve the resource that the test requests.
type peering struct {
	*plane
	first, second *member
	lines         []string // requests and responses, without values that vary between runs
}

// serverIDOf returns the ID of a server on a host (apiserver pkg/server/config.go).
func serverIDOf(host string) string {
	text := []byte{0, byte(len(host))}
	text = append(append(text, host...), 0, byte(len("kube-apiserver")))
	sum := sha256.Sum256(append(text, "kube-apiserver"...))
	return "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
}

var passing = regexp.MustCompile(`"(uid|resourceVersion|creationTimestamp|time|renewTime|acquireTime|holderIdentity|controller-uid|batch\.kubernetes\.io/controller-uid)":"[^"]*"|127\.0\.0\.1:\d+|"port":\d+|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

func (p *peering) logf(format string, args ...any) {
	text := passing.ReplaceAllStringFunc(fmt.Sprintf(format, args...), func(found string) string {
		name, _, _ := strings.Cut(found, ":")
		return name + ":…"
	})
	p.lines = append(p.lines, text)
}

// ask sends a request to a server and records the response.
func (p *peering) ask(of *member, method, path, body string, header http.Header) int {
	code, text := of.ask(method, path, body, header)
	p.logf("%s %s %v: %d %s", method, path, header, code, text)
	return code
}

const peerJob = `{"kind":"Job","apiVersion":"batch/v1","metadata":{"name":"j","namespace":"default"},"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`

// run starts both servers, sends the second one requests for resources that only the first one serves, and stops both.
func (p *peering) run(firstStock, secondStock bool) {
	p.t.Helper()
	ports := proctest.Ports(p.t, 2)
	p.first = p.member(firstStock, "first", ports[0]).start()
	p.second = p.member(secondStock, "second", ports[1], "--runtime-config=batch/v1=false").start()
	const jobs = "/apis/batch/v1/namespaces/default/jobs"
	p.second.Eventually(p.t, "discovers its peer", func() error {
		if code, body := p.second.ask(http.MethodGet, jobs, "", nil); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	alice := http.Header{"Authorization": {"Bearer alice-token"}}
	proxied := http.Header{"X-Kubernetes-Peer-Proxied": {"true"}}
	p.ask(p.second, http.MethodPost, jobs, peerJob, nil)
	p.ask(p.second, http.MethodGet, jobs+"/j", "", nil)
	p.ask(p.second, http.MethodPatch, jobs+"/j", `{"metadata":{"labels":{"a":"b"}}}`, http.Header{"Content-Type": {"application/merge-patch+json"}})
	p.ask(p.second, http.MethodGet, jobs, "", nil)
	p.ask(p.second, http.MethodGet, jobs+"?watch=1&timeoutSeconds=1&resourceVersion=0", "", nil)
	p.ask(p.second, http.MethodGet, jobs, "", alice)
	p.ask(p.second, http.MethodGet, jobs, "", proxied)
	p.ask(p.second, http.MethodGet, jobs+"/j/nothing", "", nil)
	p.ask(p.second, http.MethodGet, jobs+"/j/status", "", nil)
	p.ask(p.second, http.MethodPost, jobs, `{`, nil)
	p.ask(p.second, http.MethodGet, "/apis/batch/v1/nothings", "", nil)
	p.ask(p.second, http.MethodGet, "/apis/nothing/v1/nothings", "", nil)
	p.ask(p.second, http.MethodGet, "/apis/apps/v1/nothings", "", nil)
	p.ask(p.second, http.MethodGet, "/api/v1/namespaces/default/nothings", "", nil)
	p.ask(p.second, http.MethodGet, "/apis/batch/v1", "", nil)
	p.ask(p.second, http.MethodGet, "/apis/batch", "", nil)
	p.ask(p.second, http.MethodDelete, jobs+"/j?propagationPolicy=Background", "", nil)
	p.discover()
	p.identities()
	p.stop()
}

// discover reads the second server's discovery document, with the groups of its peers and without.
// discover reads discovery from the second server, with and without the groups of its peers.
func (p *peering) discover() {
	p.t.Helper()
	for _, profile := range []string{"", ";profile=nopeer"} {
		header := http.Header{"Accept": {"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList" + profile}}
		batch := func() bool {
			_, body := p.second.ask(http.MethodGet, "/apis", "", header)
			return strings.Contains(body, `"responseKind":{"group":"batch","version":"v1","kind":"Job"}`) || strings.Contains(body, `"kind":"CronJob"`)
		}
		p.logf("%s has jobs: %v", profile, batch())
	}
}

// identities records the objects that each server has published in the store.
func (p *peering) identities() {
	p.t.Helper()
	for i, m := range []*member{p.first, p.second} {
		id := serverIDOf([]string{"first", "second"}[i])
		p.ask(m, http.MethodGet, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/"+id, "", nil)
		record := &corev1.Endpoints{}
		m.Eventually(p.t, "publishes its address", func() error {
			_, _, err := scheme.Codecs.UniversalDeserializer().Decode(valueAt(p.t, p.url, "/registry/peerserverleases/"+id), nil, record)
			return err
		})
		record.Generation = min(record.Generation, 1)
		text, err := json.Marshal(record)
		if err != nil {
			p.t.Fatal(err)
		}
		p.logf("%s", text)
	}
	leases, err := kubernetes.NewForConfigOrDie(p.first.config()).CoordinationV1().Leases("kube-system").List(p.t.Context(), metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver"})
	if err != nil {
		p.t.Fatal(err)
	}
	p.logf("%d leases", len(leases.Items))
	tracking := valueAt(p.t, p.url, "/registry/configmaps/kube-system/kube-apiserver-legacy-service-account-token-tracking")
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(tracking, nil, nil)
	if err != nil {
		p.t.Fatalf("token tracking: %v", err)
	}
	p.logf("token tracking: %v", sinceDay.ReplaceAllString(fmt.Sprint(object.(*corev1.ConfigMap).Data), "day"))
}

var sinceDay = regexp.MustCompile(`\d{4}-\d\d-\d\d`)

// stop stops both servers, the second one first, and records whether the objects that they published are deleted.
func (p *peering) stop() {
	p.t.Helper()
	for i, m := range []*member{p.second, p.first} {
		if err := m.Terminate(p.t); err != nil {
			p.t.Errorf("%v\n%s", err, m.Output())
		}
		id := serverIDOf([]string{"second", "first"}[i])
		for _, key := range []string{"leases/kube-system/" + id, "peerserverleases/" + id} {
			p.logf("%s left: %v", key, valueAt(p.t, p.url, "/registry/"+key) != nil)
		}
	}
}

// TestPeers checks that a server forwards requests for resources that it does not serve to another server of the
// cluster that serves them. Each server publishes its address. One of the two may be a kube-apiserver.
func TestPeers(t *testing.T) {
	t.Parallel()
	if out, err := onHost("elsewhere", "/bin/hostname").CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "elsewhere" {
		// Servers identify each other by a hash of the host name, which no flag sets.
		t.Skipf("this system does not allow a UTS namespace with another host name: %v %s", err, out)
	}
	talk := func(firstStock, secondStock bool) []string {
		p := &peering{plane: newPlane(t)}
		p.run(firstStock, secondStock)
		return p.lines
	}
	lines := talk(false, false)
	for _, want := range []string{
		`POST /apis/batch/v1/namespaces/default/jobs map[]: 201 `,
		` has jobs: true`, `;profile=nopeer has jobs: false`,
		`GET /apis/batch/v1/namespaces/default/jobs map[X-Kubernetes-Peer-Proxied:[true]]: 404 `,
		`GET /apis/batch/v1/namespaces/default/jobs map[Authorization:[Bearer alice-token]]: 403 `,
		`"kubernetes.io/peer-advertise-address":"127.0.0.1:…`, `2 leases`, `left: false`,
	} {
		if !strings.Contains(strings.Join(lines, "\n"), want) {
			t.Errorf("no %s in\n%s", want, strings.Join(lines, "\n"))
		}
	}
	if *stockBinary == "" {
		return
	}
	stock := talk(true, true)
	for name, other := range map[string][]string{
		"Larders": lines, "stock before Larder": talk(true, false), "Larder before stock": talk(false, true),
	} {
		for i := range max(len(stock), len(other)) {
			if i >= len(stock) || i >= len(other) || stock[i] != other[i] {
				t.Errorf("%s: got\n%s\nkube-apiserver\n%s", name, at(other, i), at(stock, i))
			}
		}
	}
}

func at(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return "nothing"
}
