// Package e2etest builds larder and makes clients of it, for tests that start larder as a process.
package e2etest

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/larder-io/larder/internal/proctest"
)

// Build builds larder with flags of the go command and sets program to its path, unless program names one already.
// TestMain calls remove at the end.
func Build(program *string, flags ...string) (remove func(), err error) {
	if *program != "" {
		return func() {}, nil
	}
	dir, err := os.MkdirTemp("", "larder-e2e-")
	if err != nil {
		return nil, err
	}
	remove = func() { os.RemoveAll(dir) }
	*program = filepath.Join(dir, "larder")
	if err := proctest.Build(*program, "github.com/larder-io/larder/cmd/larder", flags...); err != nil {
		remove()
		return nil, err
	}
	return remove, nil
}

// Config reads a kubeconfig. Its clients do not limit their rate.
func Config(t testing.TB, kubeconfig string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}

// HTTPClient returns an HTTP client with the credentials of config. Its idle connections are closed at the end of the test.
func HTTPClient(t testing.TB, config *rest.Config) *http.Client {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	return client
}
