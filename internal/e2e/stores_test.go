package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
)

// TestStoresByResource keeps every built-in resource in a second etcd and a custom resource in a third, each with its
// own revisions. Objects must be in the right store, and the stores must be checked, measured and compacted. A
// checkpoint must cover them, watches must resume after a restart, and one store can be restored alone.
func TestStoresByResource(t *testing.T) {
	first, second := serveEtcd(t), serveEtcd(t)
	data := filepath.Join(t.TempDir(), "third")
	third, thirdEtcd := startEtcd(t, data)
	overrides := []string{"x.io/boxes#" + third}
	for _, name := range builtinResources(t) {
		overrides = append(overrides, name+"#"+second)
	}
	p := serve(t, "--etcd-servers", first, "--etcd-servers-overrides", strings.Join(overrides, ","), "--checkpoints", "--etcd-compaction-interval=1s",
		"--etcd-healthcheck-timeout=1m", "--etcd-readycheck-timeout=1m") // a slow etcd also counts as healthy
	k, client := newKubectl(t, p.kubeconfig(), "default"), p.client()
	boxes := dynamic.NewForConfigOrDie(p.config()).Resource(schema.GroupVersionResource{Group: "x.io", Version: "v1", Resource: "boxes"}).Namespace("default")
	k.must(t, definition("boxes", "Box"), "apply", "-f", "-")
	k.must(t, "", "wait", longWait, "--for=condition=established", "crd/boxes.x.io")
	makeBox := func(name string) *unstructured.Unstructured {
		t.Helper()
		var made *unstructured.Unstructured
		proctest.Eventually(t, "boxes are served", func() (err error) {
			made, err = boxes.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "x.io/v1", "kind": "Box", "metadata": map[string]any{"name": name}}}, metav1.CreateOptions{})
			return err
		})
		return made
	}
	kept := makeBox("kept")
	put(t, client, "default", "kept")

	for _, key := range keysOf(t, first) {
		if !strings.HasPrefix(key, "/registry/masterleases/") && !strings.HasPrefix(key, "/registry/peerserverleases/") {
			t.Errorf("%s is in the first store", key)
		}
	}
	for _, key := range []string{"/registry/configmaps/default/kept", "/registry/apiextensions.k8s.io/customresourcedefinitions/boxes.x.io", "/registry/ranges/servicenodeports"} {
		if !slices.Contains(keysOf(t, second), key) {
			t.Errorf("%s is not in the second store", key)
		}
	}
	if got := keysOf(t, third); !slices.Equal(got, []string{"/registry/x.io/boxes/default/kept"}) {
		t.Errorf("the third store has %q", got)
	}
	ready, metrics := p.want(http.StatusOK, "/readyz?verbose"), p.want(http.StatusOK, "/metrics") // etcd-1 is the third store, which the flags name first
	for text, in := range map[string]string{
		"[+]etcd-override-0 ok": ready, "[+]etcd-override-1 ok": ready, "[+]etcd-override-readiness-1 ok": ready,
		`apiserver_storage_size_bytes{storage_cluster_id="etcd-2"} `: metrics, `larder_tail_revision{storage_cluster_id="etcd-0"} `: metrics,
	} {
		if !strings.Contains(in, text) {
			t.Errorf("no %q in:\n%.3000s", text, in)
		}
	}
	proctest.Eventually(t, "the third store's revision is reported", func() error { // the compactor reports it
		found := regexp.MustCompile(`\nlarder_tail_revision{storage_cluster_id="etcd-1"} (\d+)\n`).FindStringSubmatch(p.want(http.StatusOK, "/metrics"))
		if found == nil || revisionOf(t, found[1]) < revisionOf(t, kept.GetResourceVersion()) || revisionOf(t, found[1]) > revisionOf(t, names(t, boxes, "at revision")) {
			return fmt.Errorf("got revision %q, the box was created at %s", found, kept.GetResourceVersion())
		}
		return nil
	})

	out := larder(t, "checkpoint", "clean", "--kubeconfig", p.kubeconfig())
	put(t, client, "default", "litter")
	makeBox("litter")
	k.must(t, "", "delete", "box", "kept")
	out += larder(t, "reset", "clean", "--kubeconfig", p.kubeconfig())
	if got := names(t, boxes); got != "[kept]" {
		t.Errorf("boxes after a reset: %s\n%s", got, out)
	}
	if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "litter", metav1.GetOptions{}); err == nil {
		t.Errorf("a ConfigMap exists after a reset:\n%s", out)
	}
	for _, url := range []string{first, second, third} {
		proctest.Eventually(t, "each store is compacted", func() error {
			_, err := keyIn(t, url, "compact_rev_key")
			return err
		})
	}

	restart := func() {
		t.Helper()
		if err := p.Terminate(t); err != nil {
			t.Fatal(err)
		}
		p.start()
		p.awaitReady()
	}
	p.args = append(p.args, "--etcd-compaction-interval=0") // otherwise the revision might be compacted before the watch
	restart()
	from := names(t, boxes, "at revision")
	later := makeBox("later")
	restart()
	watched, err := boxes.Watch(t.Context(), metav1.ListOptions{ResourceVersion: from})
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Stop()
	if e := <-watched.ResultChan(); e.Type != "ADDED" || e.Object.(*unstructured.Unstructured).GetResourceVersion() != later.GetResourceVersion() {
		t.Errorf("a watch from before the restart got %v", e)
	}

	file := filepath.Join(t.TempDir(), "boxes.db")
	larder(t, "snapshot", "save", file, "--etcd-servers", third)
	makeBox("after-the-backup")
	if err := thirdEtcd.Terminate(t); err != nil {
		t.Log(err)
	}
	if err := os.Rename(data, data+"-before"); err != nil {
		t.Fatal(err)
	}
	if out := larder(t, "snapshot", "restore", file, "--etcd-dir", data); !strings.HasPrefix(out, "restored") {
		t.Fatal(out)
	}
	if err := thirdEtcd.Start(); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "the boxes are those of the backup", func() error {
		list, err := boxes.List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) != 2 {
			err = fmt.Errorf("%d boxes", len(list.Items))
		}
		return err
	})
	put(t, client, "default", "other-stores-go-on")
	makeBox("after-the-restore")
}

// TestUnmovedObjectsAreNotHidden checks that a server does not start if the flag would hide custom resources that
// kube-apiserver has in the first store.
func TestUnmovedObjectsAreNotHidden(t *testing.T) {
	first, second := serveEtcd(t), serveEtcd(t)
	inStore(t, first, func(ctx context.Context, store kv.Store) error {
		_, err := store.Put(ctx, "/registry/x.io/boxes/default/kept", []byte("{}"), kv.PutOptions{})
		return err
	})
	out := larder(t, "serve", "--quiet", "--secure-port", strconv.Itoa(proctest.Port(t)), "--etcd-servers", first, "--etcd-servers-overrides", "x.io/boxes#"+second)
	if want := "has no boxes.x.io, but that of --etcd-servers has 1: move them"; !strings.Contains(out, want) {
		t.Errorf("no %q in:\n%s", want, out)
	}
}

// builtinResources returns the names of all built-in resources that a server stores, in the form of
// --etcd-servers-overrides.
func builtinResources(t *testing.T) (all []string) {
	t.Helper()
	found, err := serve(t, "--unsafe-no-fsync").client().Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range found {
		version, _ := schema.ParseGroupVersion(list.GroupVersion)
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "create") && slices.Contains(r.Verbs, "list") {
				all = append(all, version.Group+"/"+r.Name)
			}
		}
	}
	return all
}

// names returns the names of the boxes or, with one more argument, the revision of the list.
func names(t *testing.T, boxes dynamic.ResourceInterface, revision ...string) string {
	t.Helper()
	list, err := boxes.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(revision) > 0 {
		return list.GetResourceVersion()
	}
	var all []string
	for _, item := range list.Items {
		all = append(all, item.GetName())
	}
	return fmt.Sprint(all)
}

// revisionOf returns a revision as a number.
func revisionOf(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// keysOf lists the keys of objects in an etcd.
func keysOf(t *testing.T, url string) (keys []string) {
	t.Helper()
	inStore(t, url, func(ctx context.Context, store kv.Store) error {
		_, err := kv.RangeAll(ctx, store, kv.RangeOptions{Prefix: "/registry/", KeysOnly: true}, func(page kv.Page) error {
			for _, item := range page.Items {
				keys = append(keys, item.Key)
			}
			return nil
		})
		return err
	})
	return keys
}

// keyIn returns the value of a key in an etcd.
func keyIn(t *testing.T, url, key string) (value string, err error) {
	t.Helper()
	inStore(t, url, func(ctx context.Context, store kv.Store) error {
		item, found, _, getErr := store.Get(ctx, key)
		if value = string(item.Value); !found {
			err = errors.New("no key " + key)
		}
		return getErr
	})
	return value, err
}

// inStore runs fn with a client of an etcd.
func inStore(t *testing.T, url string, fn func(context.Context, kv.Store) error) {
	t.Helper()
	store, err := kv.NewExternal(kv.ExternalConfig{StoreConfig: kv.StoreConfig{Prefix: "/registry"}, Endpoints: []string{url}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	defer func() { stop(); <-ended }()
	if err := fn(t.Context(), store); err != nil {
		t.Fatal(err)
	}
}
