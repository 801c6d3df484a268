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

	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/httpapi/faults"
	"github.com/larder-io/larder/internal/e2e/e2etest"
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
	remove, err := e2etest.Build(larder)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	remove()
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
	s.config = e2etest.Config(t, filepath.Join(dir, "admin.kubeconfig"))
	s.faults = faults.Client{HTTP: s.client(t, 2), URL: s.config.Host}
	return s
}

// as returns the configuration of a client with a user agent, over HTTP/1.1 or HTTP/2.
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
	return e2etest.HTTPClient(t, s.as("test", major))
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

// awaitHeld waits until the watches of a resource hold want events.
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
