package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// buildTree builds programs of this tree into a directory. Like proctest.Build, it only links what no test has linked yet.
func buildTree(t *testing.T, dir string, programs ...string) {
	t.Helper()
	for _, program := range programs {
		cmd := exec.Command("go", "run", "-exec", "cp", program, dir)
		cmd.Dir = filepath.Join("..", "..")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
}

// TestEnvtestStartsFetchedArchive has setup-envtest and controller-runtime fetch the archive of an index. envtest must
// start the unpacked programs.
func TestEnvtestStartsFetchedArchive(t *testing.T) {
	if testing.Short() {
		t.Skip("builds larder and kubectl")
	}
	log.SetLogger(logr.Discard())
	programs, served := t.TempDir(), t.TempDir()
	buildTree(t, programs, "./cmd/larder", "k8s.io/kubernetes/cmd/kubectl")
	server := httptest.NewServer(http.FileServer(http.Dir(served)))
	defer server.Close()
	p, err := newProduct(runtime.GOOS+"/"+runtime.GOARCH, programs, texts{}, time.Unix(1e9, 0).UTC())
	if err != nil {
		t.Fatal(err)
	}
	p.level, p.url, p.index = gzip.BestSpeed, server.URL, make(envtestIndex)
	if p.kubernetes, err = kubernetesVersion(filepath.Join("..", "..")); err != nil {
		t.Fatal(err)
	}
	for _, file := range []struct {
		name    string
		content func() []byte
	}{{p.envtestName(), p.envtest}, {"index.yaml", p.index.yaml}} {
		if err := writeFile(served, file.name, file.content(), new(bytes.Buffer)); err != nil {
			t.Fatal(err)
		}
	}
	index, store := server.URL+"/index.yaml", t.TempDir()
	setup := exec.Command("go", "tool", "-modfile=../lint/tools/go.mod", "setup-envtest", "use", strings.TrimPrefix(p.kubernetes, "v"), "--index", index, "--bin-dir", store, "-p", "path")
	setup.Stderr = t.Output()
	out, err := setup.Output()
	if err != nil {
		t.Fatal(err)
	}
	unpacked := string(out)
	t.Cleanup(func() { _ = os.Chmod(unpacked, 0o755) }) // setup-envtest removes the permission to delete its files
	t.Run("setup-envtest", func(t *testing.T) { useEnvironment(t, &envtest.Environment{BinaryAssetsDirectory: unpacked}) })
	t.Run("DownloadBinaryAssets", func(t *testing.T) {
		useEnvironment(t, &envtest.Environment{
			BinaryAssetsDirectory: t.TempDir(), DownloadBinaryAssets: true,
			DownloadBinaryAssetsVersion: p.kubernetes, DownloadBinaryAssetsIndexURL: index,
		})
	})
}

// useEnvironment starts an environment, creates an object, and reads it with the environment's kubectl.
func useEnvironment(t *testing.T, env *envtest.Environment) {
	config, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	}()
	admin, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "made"}}); err != nil {
		t.Fatal(err)
	}
	user, err := env.AddUser(envtest.User{Name: "root", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	kubectl, err := user.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	stdout, _, err := kubectl.Run("get", "configmap", "made", "--output=name")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(stdout); err != nil || string(got) != "configmap/made\n" {
		t.Errorf("kubectl printed %q, %v", got, err)
	}
}
