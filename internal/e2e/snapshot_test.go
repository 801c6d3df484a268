package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/larder-io/larder/internal/proctest"
)

// TestSnapshotRestoresObjects saves a server's objects during writes, changes them, and restores them. The server and
// an informer that stayed open must have the saved objects.
func TestSnapshotRestoresObjects(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync")
	k := newKubectl(t, p.kubeconfig(), "default")
	k.must(t, definition("boxes", "Box"), "apply", "-f", "-")
	k.must(t, "", "wait", longWait, "--for=condition=established", "crd/boxes.x.io")
	proctest.Eventually(t, "boxes are served", func() error {
		return k.pipe("{apiVersion: x.io/v1, kind: Box, metadata: {name: kept}, spec: {a: 1}}", "apply", "-f", "-")
	})
	for i := range 5 {
		put(t, p.client(), "default", fmt.Sprintf("kept-%d", i))
	}
	factory := informers.NewSharedInformerFactoryWithOptions(p.client(), 0, informers.WithNamespace("default"))
	informer := factory.Core().V1().ConfigMaps().Informer()
	ctx, cancel := context.WithCancel(t.Context())
	defer factory.Shutdown()
	defer cancel()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	var acknowledged atomic.Int64
	writing, stop := context.WithCancel(t.Context())
	written, client := make(chan struct{}), p.client()
	go func() {
		defer close(written)
		for i := 0; writing.Err() == nil; i++ {
			c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("written-%05d", i)}}
			if _, err := client.CoreV1().ConfigMaps("kube-public").Create(writing, c, metav1.CreateOptions{}); err == nil {
				acknowledged.Store(int64(i + 1))
			}
		}
	}()
	proctest.Eventually(t, "objects are written", func() error {
		if n := acknowledged.Load(); n < 20 {
			return fmt.Errorf("%d are written", n)
		}
		return nil
	})
	kept := func() map[string]string {
		all := everything(t, p)
		maps.DeleteFunc(all, func(key, _ string) bool { return strings.Contains(key, " kube-public/written-") })
		return all
	}
	var before int64
	var want map[string]string
	file := filepath.Join(t.TempDir(), "backup")
	proctest.Eventually(t, "nothing else changes while the snapshot is saved", func() error {
		want, before = kept(), acknowledged.Load()
		_ = os.Remove(file)
		out := larder(t, "snapshot", "save", file, "--data-dir", p.dir)
		if !regexp.MustCompile(`^saved .*backup: \d+ keys at revision \d+, \d+ bytes\n$`).MatchString(out) {
			t.Fatal(out)
		}
		return same(kept(), want)
	})
	stop()
	<-written
	put(t, client, "default", "gone")
	k.must(t, "", "delete", "configmap", "kept-0")
	k.must(t, "", "patch", "configmap", "kept-1", "-p", `{"data":{"a":"b"}}`)
	k.must(t, "", "delete", "crd", "boxes.x.io")

	p.signal(syscall.SIGTERM)
	if err := p.Wait(t); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(p.dir, "etcd"), filepath.Join(t.TempDir(), "etcd")); err != nil {
		t.Fatal(err)
	}
	if out := larder(t, "snapshot", "restore", file, "--data-dir", p.dir); !strings.HasPrefix(out, "restored "+p.dir) {
		t.Fatal(out)
	}
	p.start()
	p.awaitReady()
	proctest.Eventually(t, "everything is as before", func() error {
		return same(kept(), want) // custom resources are served a moment after the restart
	})
	list, err := client.CoreV1().ConfigMaps("kube-public").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := int64(0)
	for _, c := range list.Items {
		if strings.HasPrefix(c.Name, "written-") {
			if want := fmt.Sprintf("written-%05d", n); c.Name != want {
				t.Fatalf("%s is restored, %s is not", c.Name, want)
			}
			n++
		}
	}
	if n < before {
		t.Errorf("%d objects are restored, %d had been acknowledged", n, before)
	}
	proctest.Eventually(t, "the informer has the server's objects", func() error {
		list, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		has, want := make(map[string]string), make(map[string]string)
		for i := range list.Items {
			want[list.Items[i].Name] = fmt.Sprint(list.Items[i].Data, list.Items[i].UID)
		}
		for _, object := range informer.GetStore().List() {
			c := object.(*corev1.ConfigMap)
			has[c.Name] = fmt.Sprint(c.Data, c.UID)
		}
		return same(has, want)
	})
}

// same returns an error with the first difference of two maps.
func same(got, want map[string]string) error {
	for key := range want {
		if got[key] != want[key] {
			return fmt.Errorf("%s: %s, want %s", key, got[key], want[key])
		}
	}
	for key := range got {
		if want[key] == "" {
			return fmt.Errorf("unexpected %s: %s", key, got[key])
		}
	}
	return nil
}

// TestSnapshotReportsMistakes checks that mistakes are reported in one line, and that nothing is overwritten.
func TestSnapshotReportsMistakes(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync")
	dir := t.TempDir()
	file := filepath.Join(dir, "backup")
	if out := larder(t, "snapshot", "save", file, "--data-dir", p.dir); !strings.HasPrefix(out, "saved ") {
		t.Fatal(out)
	}
	damaged := filepath.Join(dir, "damaged")
	if content, err := os.ReadFile(file); err != nil || os.WriteFile(damaged, append(content, 0), 0o600) != nil {
		t.Fatal("cannot copy", err)
	}
	snapshot := func(args string) string {
		list := append([]string{"snapshot"}, strings.Fields(args)...)
		for i, arg := range list {
			list[i] = strings.NewReplacer("FILE", file, "DATA", p.dir, "DIR", dir).Replace(arg)
		}
		return larder(t, list...)
	}
	for _, test := range []struct{ args, want string }{
		{"save FILE --data-dir DATA", "file already exists"},
		{"save DIR/new --data-dir DIR", "no server with an embedded etcd uses "},
		{"save DIR/new --etcd-servers http://127.0.0.1:1", "connection refused"},
		{"save DIR/new --etcd-servers http://127.0.0.1:1 --data-dir x", "cannot be used together"},
		{"save DIR/new --etcd-servers http://127.0.0.1:1 --etcd-certfile x", "must be given together"},
		{"restore FILE --data-dir DATA", "in use by another process"},
		{"save DIR/new.db --data-dir DIR --etcd-cafile x", "--etcd-cafile needs --etcd-servers"},
		{"restore FILE --etcd-dir DIR", "is not empty"},
		{"restore DIR/damaged --etcd-dir DIR/new", "not a complete etcd snapshot"},
		{"restore FILE --etcd-dir DIR/new --initial-cluster default=http://localhost:2380,b=http://b:2380", "--initial-cluster-token is required"},
		{"restore FILE --data-dir DIR/new --name x", "--name needs --etcd-dir"},
		{"restore FILE --etcd-dir DIR/new --data-dir x", "cannot be used together"},
		{"status DIR/damaged", "not a complete etcd snapshot"},
		{"status DIR/missing", "no such file"},
		{"status FILE -o yaml", "must be json or empty"},
	} {
		out := snapshot(test.args)
		if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 2 || !strings.Contains(lines[0], test.want) {
			t.Errorf("%s: want one line with %q, got:\n%s", test.args, test.want, out)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("the directory has %v, error %v", entries, err)
	}
	for args, want := range map[string]string{
		"status FILE":                           `^HASH .*\n[0-9a-f]{8}  \d+ +\d+ `,
		"status FILE -o json":                   `^\{"hash":\d+,"revision":\d+,"totalKey":\d+,`,
		"restore FILE --etcd-dir DIR/member":    `^restored .*member: \d+ keys at revision 10000\d+\n$`,
		"restore FILE --data-dir DIR/elsewhere": `^restored .*elsewhere/etcd: `,
	} {
		out := snapshot(args)
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("%s: %s, want %s", args, out, want)
		}
	}
}
