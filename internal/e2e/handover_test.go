package e2e_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv/snapshot"
)

// handover is a cluster whose server is replaced by another program at the same address, while clients continue.
type handover struct {
	*plane
	port  int
	now   *member // the current server
	first *member // the first server; all clients use its address, over their own connections

	running sync.WaitGroup
	halt    context.CancelFunc

	mu     sync.Mutex
	acked  map[string]string // acknowledged contents, by path; "" means deleted
	writes int
	faults []string

	informers map[string]cache.SharedIndexInformer // by path of the list
}

const gadgets = `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","metadata":{"name":"gadgets.larder.example.com"},
	"spec":{"group":"larder.example.com","scope":"Namespaced","names":{"plural":"gadgets","singular":"gadget","kind":"Gadget","listKind":"GadgetList"},"versions":[
	{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"size":{"type":"integer"},"color":{"type":"string","default":"red"}}}}}}},
	{"name":"v1alpha1","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}]}}`

// seeds are paths and bodies of requests that create objects of many kinds.
func seeds() [][2]string {
	const pod = `{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}]}]}}`
	const core, gadget = "/api/v1/namespaces/default/", "/apis/larder.example.com/"
	return [][2]string{
		{core + "serviceaccounts", `{"metadata":{"name":"default"}}`},
		{core + "configmaps", `{"metadata":{"name":"c"},"data":{"k":"v"},"binaryData":{"b":"AAE="}}`},
		{core + "secrets", `{"metadata":{"name":"s"},"stringData":{"password":"hunter2"}}`},
		{core + "services", `{"metadata":{"name":"s"},"spec":{"selector":{"a":"b"},"ports":[{"port":80}]}}`},
		{core + "pods", `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`},
		{core + "persistentvolumeclaims", `{"metadata":{"name":"v"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`},
		{core + "resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"pods":"10"}}}`},
		{core + "events", `{"metadata":{"name":"e"},"involvedObject":{"namespace":"default","name":"p"},"reason":"x"}`},
		{"/api/v1/nodes", `{"metadata":{"name":"n"}}`},
		{"/api/v1/persistentvolumes", `{"metadata":{"name":"v"},"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/x"}}}`},
		{"/apis/apps/v1/namespaces/default/deployments", `{"metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":` + pod + `}}`},
		{"/apis/apps/v1/namespaces/default/statefulsets", `{"metadata":{"name":"s"},"spec":{"serviceName":"s","selector":{"matchLabels":{"a":"b"}},"template":` + pod + `}}`},
		{"/apis/batch/v1/namespaces/default/cronjobs", `{"metadata":{"name":"c"},"spec":{"schedule":"@daily","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}`},
		{"/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", `{"metadata":{"name":"h"},"spec":{"scaleTargetRef":{"kind":"Deployment","apiVersion":"apps/v1","name":"d"},"maxReplicas":3}}`},
		{"/apis/networking.k8s.io/v1/namespaces/default/ingresses", `{"metadata":{"name":"i"},"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}}`},
		{"/apis/policy/v1/namespaces/default/poddisruptionbudgets", `{"metadata":{"name":"p"},"spec":{"maxUnavailable":1}}`},
		{"/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", `{"metadata":{"name":"r"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`},
		{"/apis/coordination.k8s.io/v1/namespaces/default/leases", `{"metadata":{"name":"l"},"spec":{"holderIdentity":"me"}}`},
		{"/apis/storage.k8s.io/v1/storageclasses", `{"metadata":{"name":"s"},"provisioner":"x"}`},
		{gadget + "v1/namespaces/default/gadgets", `{"kind":"Gadget","apiVersion":"larder.example.com/v1","metadata":{"name":"one"},"spec":{"size":1,"gone":true}}`},
		{gadget + "v1alpha1/namespaces/default/gadgets", `{"kind":"Gadget","apiVersion":"larder.example.com/v1alpha1","metadata":{"name":"old"},"spec":{"size":2}}`},
	}
}

// seed creates the CRD and the objects.
func (h *handover) seed() {
	h.t.Helper()
	if code, body := h.now.ask(http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", gadgets, nil); code != http.StatusCreated {
		h.t.Fatal(code, body)
	}
	for _, s := range seeds() {
		h.now.Eventually(h.t, "makes "+s[0], func() error {
			if code, body := h.now.ask(http.MethodPost, s[0], s[1], nil); code != http.StatusCreated {
				return fmt.Errorf("%d %s", code, body)
			}
			return nil
		})
	}
}

// replace stops the server and starts another one at its address.
func (h *handover) replace(stock bool) {
	h.t.Helper()
	if h.now != nil {
		if err := h.now.Terminate(h.t); err != nil {
			h.t.Errorf("%v\n%s", err, h.now.Output())
		}
	}
	h.now = h.member(stock, "", h.port).start()
	if h.first == nil {
		h.first = h.now
	}
}

// state returns all objects, in every version in which their resource is served, by list and name.
func (h *handover) state() map[string]json.RawMessage {
	h.t.Helper()
	client := kubernetes.NewForConfigOrDie(h.now.config())
	var state map[string]json.RawMessage
	h.now.Eventually(h.t, "serves all resources", func() error {
		state = make(map[string]json.RawMessage)
		_, lists, err := client.Discovery().ServerGroupsAndResources()
		if err != nil {
			return err
		}
		for _, l := range lists {
			path := "/apis/" + l.GroupVersion
			if l.GroupVersion == "v1" {
				path = "/api/v1"
			}
			for _, r := range l.APIResources {
				if strings.Contains(r.Name, "/") || !strings.Contains(fmt.Sprint(r.Verbs), "list") || r.Name == "componentstatuses" {
					continue
				}
				if err := h.read(state, path+"/"+r.Name); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return state
}

// named is the part of an object that the test compares.
type named struct {
	Metadata struct{ Name, Namespace, ResourceVersion string }
	Data     map[string]string
	Spec     struct{ Color string }
}

func (h *handover) read(state map[string]json.RawMessage, path string) error {
	code, body := h.now.ask(http.MethodGet, path, "", nil)
	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal([]byte(body), &list); code != http.StatusOK || err != nil {
		return fmt.Errorf("%s: %d %w", path, code, err)
	}
	for _, item := range list.Items {
		var n named
		if err := json.Unmarshal(item, &n); err != nil {
			return err
		}
		state[path+" "+n.Metadata.Namespace+"/"+n.Metadata.Name] = item
	}
	return nil
}

// compare compares the objects of one server with those that another one returned before. No object may be lost, and
// objects without a later write must have the same bytes.
func (h *handover) compare(what string, before, after map[string]json.RawMessage) {
	h.t.Helper()
	same := 0
	for key, was := range before {
		is, found := after[key]
		if !found {
			if !strings.Contains(key, "kube-system/apiserver-") && !strings.Contains(key, "/w") { // objects of the server and of the writers
				h.t.Errorf("%s: %s is lost", what, key)
			}
			continue
		}
		var old, now named
		if json.Unmarshal(was, &old) != nil || json.Unmarshal(is, &now) != nil {
			h.t.Fatalf("%s %s", was, is)
		}
		if old.Metadata.ResourceVersion != now.Metadata.ResourceVersion {
			continue
		}
		if same++; !bytes.Equal(was, is) {
			h.t.Errorf("%s: %s was\n%s\nand is\n%s", what, key, was, is)
		}
	}
	h.t.Logf("%s: %d of %d objects were not written since, and are equal; now there are %d objects", what, same, len(before), len(after))
	if same < len(before)/2 {
		h.t.Errorf("invalid: %s: too few objects to compare", what)
	}
}

// write creates, changes and deletes objects until ctx ends. It retries each write until it is acknowledged.
func (h *handover) write(ctx context.Context, who int) {
	paths := []string{"/api/v1/namespaces/default/configmaps", "/apis/larder.example.com/v1/namespaces/default/gadgets", "/api/v1/namespaces/default/secrets"}
	for i := 0; ctx.Err() == nil; i++ {
		list, name := paths[i%len(paths)], fmt.Sprintf("w%d-%d", who, i/6)
		path := list + "/" + name
		var code int
		var value string
		switch i / 3 % 2 { // first all objects are created, then changed; every third one is deleted
		case 0:
			value = fmt.Sprintf("v%d", i)
			code = h.insist(ctx, http.MethodPost, list, body(list, name, value), nil)
		default:
			value = fmt.Sprintf("u%d", i)
			header := http.Header{"Content-Type": {"application/merge-patch+json"}}
			code = h.insist(ctx, http.MethodPatch, path, body(list, name, value), header)
			if code == http.StatusOK && i/6%3 == 0 {
				if code = h.insist(ctx, http.MethodDelete, path, "", nil); code != 0 {
					value = ""
				}
			}
		}
		h.mu.Lock()
		if code == 0 { // ctx has ended; the outcome is unknown
			delete(h.acked, path)
			h.mu.Unlock()
			return
		}
		h.acked[path] = value
		h.writes++
		h.mu.Unlock()
	}
}

func body(list, name, value string) string {
	switch {
	case strings.HasSuffix(list, "gadgets"):
		return fmt.Sprintf(`{"kind":"Gadget","apiVersion":"larder.example.com/v1","metadata":{"name":%q},"spec":{"color":%q}}`, name, value)
	case strings.HasSuffix(list, "secrets"):
		return fmt.Sprintf(`{"kind":"Secret","apiVersion":"v1","metadata":{"name":%q},"data":{"k":%q}}`, name, base64.StdEncoding.EncodeToString([]byte(value)))
	}
	return fmt.Sprintf(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":%q},"data":{"k":%q}}`, name, value)
}

// insist repeats a write until it has a final response, 0 if ctx ends first. If a response was lost, the repeated write
// finds its work done.
func (h *handover) insist(ctx context.Context, method, path, body string, header http.Header) int {
	tried := 0
	for {
		code, text := h.first.ask(method, path, body, header)
		switch {
		case code == http.StatusOK || code == http.StatusCreated:
			return code
		case tried > 0 && (method == http.MethodPost && code == http.StatusConflict || method == http.MethodDelete && code == http.StatusNotFound):
			return http.StatusOK
		case code != 0 && code < 500 && code != http.StatusTooManyRequests:
			h.fault("%s %s: %d %s", method, path, code, text)
			return code
		}
		tried++
		select {
		case <-ctx.Done():
			return 0
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (h *handover) fault(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, fmt.Sprintf(format, args...))
}

// follow starts informers in both encodings and, for the custom resource, in both versions.
func (h *handover) follow(ctx context.Context) {
	h.t.Helper()
	h.informers = make(map[string]cache.SharedIndexInformer)
	config := h.now.config()
	add := func(path string, informer cache.SharedIndexInformer) {
		h.informers[path] = informer
		last := make(map[string]int64) // by name; calls of the handler are sequential
		note := func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			accessor, err := meta.Accessor(obj)
			if err != nil {
				h.fault("%v", err)
				return
			}
			at, _ := strconv.ParseInt(accessor.GetResourceVersion(), 10, 64)
			if at < last[accessor.GetName()] {
				h.fault("informer of %s: %s at %d after %d", path, accessor.GetName(), at, last[accessor.GetName()])
			}
			last[accessor.GetName()] = at
		}
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: note, DeleteFunc: note, UpdateFunc: func(_, obj any) { note(obj) }}); err != nil {
			h.t.Fatal(err)
		}
		h.running.Go(func() { informer.RunWithContext(ctx) })
	}
	typed := informers.NewSharedInformerFactoryWithOptions(kubernetes.NewForConfigOrDie(config), 0, informers.WithNamespace("default"))
	add("/api/v1/configmaps", typed.Core().V1().ConfigMaps().Informer())
	config.ContentType = runtime.ContentTypeProtobuf
	packed := informers.NewSharedInformerFactoryWithOptions(kubernetes.NewForConfigOrDie(config), 0, informers.WithNamespace("default"))
	add("/api/v1/secrets", packed.Core().V1().Secrets().Informer())
	custom, err := dynamic.NewForConfig(h.now.config())
	if err != nil {
		h.t.Fatal(err)
	}
	for _, version := range []string{"v1", "v1alpha1"} {
		gvr := schema.GroupVersionResource{Group: "larder.example.com", Version: version, Resource: "gadgets"}
		add("/apis/larder.example.com/"+version+"/gadgets", dynamicinformer.NewFilteredDynamicInformer(custom, gvr, metav1.NamespaceDefault, 0, cache.Indexers{}, nil).Informer())
	}
}

// kubectl applies a manifest and reads the object, with retries, as a user would.
func (h *handover) kubectl(value string) {
	h.t.Helper()
	manifest := filepath.Join(h.t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(manifest, []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied, namespace: default}\ndata: {k: "+value+"}\n"), 0o600); err != nil {
		h.t.Fatal(err)
	}
	run := func(args ...string) ([]byte, error) {
		args = append([]string{"--kubeconfig=/dev/null", "--server=" + h.now.url(), "--token=root-token", "--insecure-skip-tls-verify", "-n", "default"}, args...)
		return exec.Command(binaries.kubectl, args...).CombinedOutput()
	}
	h.now.Eventually(h.t, "serves kubectl", func() error {
		if out, err := run("apply", "--server-side", "-f", manifest); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		out, err := run("get", "configmap", "applied", "-o", "jsonpath={.data.k}")
		if err != nil || string(out) != value {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// finish stops the writers and checks that the server and the informers have all acknowledged objects.
func (h *handover) finish() {
	h.t.Helper()
	h.halt()
	state := h.state()
	lost := 0
	for path, value := range h.acked {
		list, name := filepath.Split(path)
		key := strings.Replace(strings.TrimSuffix(list, "/"), "/namespaces/default", "", 1) + " default/" + name
		item, found := state[key]
		var is named
		if found {
			if err := json.Unmarshal(item, &is); err != nil {
				h.t.Fatal(err)
			}
		}
		has := is.Data["k"] + is.Spec.Color
		if strings.HasSuffix(list, "secrets/") {
			raw, _ := base64.StdEncoding.DecodeString(has)
			has = string(raw)
		}
		if found != (value != "") || has != value {
			if lost++; lost < 5 {
				h.t.Errorf("%s is %q, acknowledged was %q", path, value, has)
			}
		}
	}
	for path, informer := range h.informers {
		proctest.Eventually(h.t, "the informer of "+path+" has the server's objects", func() error {
			known := len(informer.GetStore().ListKeys())
			for key, item := range state {
				name, ok := strings.CutPrefix(key, path+" default/")
				if !ok {
					continue
				}
				known--
				obj, found, err := informer.GetStore().GetByKey("default/" + name)
				if err != nil || !found {
					return fmt.Errorf("%s: %v %w", name, found, err)
				}
				var is named
				accessor, err := meta.Accessor(obj)
				if err != nil || json.Unmarshal(item, &is) != nil || accessor.GetResourceVersion() != is.Metadata.ResourceVersion {
					return fmt.Errorf("%s: %v %w", name, obj, err)
				}
			}
			if known != 0 {
				return fmt.Errorf("%d objects too many", known)
			}
			return nil
		})
	}
	for _, fault := range h.faults {
		h.t.Error(fault)
	}
	h.t.Logf("%d writes of %d objects acknowledged", h.writes, len(h.acked))
}

// restored returns the cluster restored from a backup into another etcd.
func (h *handover) restored() *handover {
	h.t.Helper()
	backup := filepath.Join(h.t.TempDir(), "backup")
	if _, err := snapshot.Save(h.t.Context(), snapshot.Source{Endpoints: []string{h.url}}, backup); err != nil {
		h.t.Fatal(err)
	}
	data := filepath.Join(h.t.TempDir(), "restored")
	member := snapshot.Member{Name: "default", Peer: "http://localhost:2380"} // etcd's defaults
	if _, err := snapshot.Restore(h.t.Context(), snapshot.RestoreConfig{Path: backup, Dir: data, Member: member}); err != nil {
		h.t.Fatal(err)
	}
	return &handover{plane: &plane{t: h.t, url: serveEtcdIn(h.t, data), args: h.args}, port: proctest.Port(h.t)}
}

// TestHandover moves a cluster from kube-apiserver to Larder and back while clients continue. The cluster has another
// prefix in etcd, encryption at rest, and custom resources of two versions. Both servers must be able to serve a
// backup. Without -stock, Larder stands in for kube-apiserver.
func TestHandover(t *testing.T) {
	t.Parallel()
	stock := *stockBinary != ""
	keys := filepath.Join(t.TempDir(), "encryption.yaml")
	config := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets, configmaps, gadgets.larder.example.com]\n  providers:\n  - secretbox:\n      keys:\n      - {name: key, secret: " +
		base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32))) + "}\n"
	if err := os.WriteFile(keys, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	h := &handover{plane: newPlane(t, "--etcd-prefix=/elsewhere", "--encryption-provider-config="+keys), port: proctest.Port(t), acked: make(map[string]string)}
	h.replace(stock)
	h.seed()
	h.kubectl("first")
	ctx, halt := context.WithCancel(t.Context())
	following, end := context.WithCancel(context.Background())
	h.follow(following)
	var writers sync.WaitGroup
	h.halt = func() { halt(); writers.Wait() }
	t.Cleanup(func() { h.halt(); end(); h.running.Wait() })
	for who := range 2 {
		writers.Go(func() { h.write(ctx, who) })
	}
	before := h.state()
	for i, program := range []bool{false, stock} {
		h.replace(program)
		what := fmt.Sprintf("after handover %d", i+1)
		h.compare(what, before, h.state())
		h.kubectl(fmt.Sprintf("after-%d", i+1))
		for _, s := range seeds() { // the new server writes all objects again
			var n named
			if err := json.Unmarshal([]byte(s[1]), &n); err != nil {
				t.Fatal(err)
			}
			path := s[0] + "/" + n.Metadata.Name
			patch := fmt.Sprintf(`{"metadata":{"annotations":{"handover":"%d"}}}`, i+1)
			if code, text := h.now.ask(http.MethodPatch, path, patch, http.Header{"Content-Type": {"application/merge-patch+json"}}); code != http.StatusOK {
				t.Errorf("%s: %d %s", path, code, text)
			}
		}
		before = h.state()
	}
	h.finish()
	if value := valueAt(t, h.url, "/elsewhere/secrets/default/s"); !bytes.HasPrefix(value, []byte("k8s:enc:secretbox:v1:key:")) {
		t.Errorf("a secret is stored without encryption: %q", value)
	}
	before = h.state()
	again := h.restored()
	for i, program := range []bool{false, stock} {
		again.replace(program)
		again.compare(fmt.Sprintf("from a backup, with server %d", i+1), before, again.state())
	}
}
