package faults

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/larder-io/larder/httpapi/faults"
	"github.com/larder-io/larder/internal/proctest"
)

var larder = flag.String("larder", "", "program to test; built if not given")

func TestMain(m *testing.M) {
	proctest.ShortTemp()
	flag.Parse()
	if testing.Short() {
		fmt.Fprintln(os.Stderr, "skipped with -short: builds a server and runs controllers against its faults")
		return
	}
	dir, err := os.MkdirTemp("", "larder-faults-")
	if err == nil && *larder == "" {
		*larder = filepath.Join(dir, "larder")
		err = proctest.Build(*larder, "github.com/larder-io/larder/cmd/larder")
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// server is a larder process.
type server struct {
	*proctest.Process
	config *rest.Config // the administrator's
	faults faults.Client
}

// serve starts a server and waits until it is ready.
func serve(t *testing.T, command string, args ...string) *server {
	t.Helper()
	dir, port := filepath.Join(t.TempDir(), "data"), proctest.Port(t)
	s := &server{Process: proctest.New(t, "the server", func() *exec.Cmd {
		return exec.Command(*larder, append([]string{command, "--data-dir", dir, "--secure-port", strconv.Itoa(port), "--unsafe-no-fsync"}, args...)...)
	})}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.Await(t, "ready after")
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	s.config = config
	s.config.QPS = -1
	s.faults = faults.Client{HTTP: s.client(t, 2), URL: config.Host}
	return s
}

// as returns the configuration of a client with a user agent, over HTTP/1.1 or 2.
func (s *server) as(agent string, major int) *rest.Config {
	c := rest.CopyConfig(s.config)
	c.UserAgent = agent
	if major == 1 {
		c.NextProtos = []string{"http/1.1"}
	}
	return c
}

// client returns an HTTP client of the administrator, with the user agent test.
func (s *server) client(t *testing.T, major int) *http.Client {
	t.Helper()
	c, err := rest.HTTPClientFor(s.as("test", major))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// set sets rules, and clears them at the end of the test.
func (s *server) set(t *testing.T, rules ...faults.Rule) {
	t.Helper()
	for _, r := range rules {
		if err := s.faults.Set(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := s.faults.Clear(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// awaitHeld waits until the watches of a resource hold so many events.
func (s *server) awaitHeld(t *testing.T, resource string, want int) {
	t.Helper()
	s.Eventually(t, "events are held", func() error {
		state, err := s.faults.State(t.Context())
		held := 0
		for _, w := range state.Watches {
			if w.Resource == resource {
				held += w.Held
			}
		}
		if err == nil && held != want {
			err = fmt.Errorf("%d of %s, want %d: %+v", held, resource, want, state.Watches)
		}
		return err
	})
}

func clientFor(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
