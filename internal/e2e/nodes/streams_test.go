package nodes

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport/spdy"

	"github.com/larder-io/larder/internal/proctest"
)

func spdyTransport(config *rest.Config) (http.RoundTripper, spdy.Upgrader, error) {
	return spdy.RoundTripperFor(config)
}

// watched is a buffer that one goroutine writes while another one reads it.
type watched struct{ proctest.Buffer }

func newWatched() *watched { return &watched{proctest.Buffer{Most: 1 << 20}} }

// has returns an error unless text was written.
func (w *watched) has(text string) error {
	if got := w.String(); !strings.Contains(got, text) {
		return fmt.Errorf("no %q in %.200q", text, got)
	}
	return nil
}

// typed returns input that does not end before the test.
func typed(t *testing.T, text string) io.Reader {
	in, keys := io.Pipe()
	go func() { _, _ = io.WriteString(keys, text) }()
	t.Cleanup(func() { in.Close() })
	return in
}

func none(n int) error {
	if n != 0 {
		return fmt.Errorf("%d", n)
	}
	return nil
}

// goroutines returns the number of the server's goroutines while it is idle.
func (c *cluster) goroutines(t *testing.T) int {
	t.Helper()
	n := 0
	proctest.Eventually(t, "the server's goroutines are counted", func() error {
		raw, err := c.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
		if err != nil {
			return err
		}
		for text := range strings.Lines(string(raw)) {
			if _, err := fmt.Sscanf(text, "go_goroutines %d", &n); err == nil {
				return nil
			}
		}
		return fmt.Errorf("no go_goroutines")
	})
	return n
}

// settles waits until the kubelet serves no request, and the server has released the requests' resources.
func (c *cluster) settles(t *testing.T, k *kubelet, before int) {
	t.Helper()
	proctest.Eventually(t, "the kubelet has no streams", func() error { return none(k.serving()) })
	c.restores(t, before)
}

// restores waits until the server has no more goroutines than before.
func (c *cluster) restores(t *testing.T, before int) {
	t.Helper()
	const slack = 12 // idle connections and other goroutines
	proctest.Eventually(t, "the server has no more goroutines than before", func() error {
		if now := c.goroutines(t); now > before+slack {
			return fmt.Errorf("%d, before %d", now, before)
		}
		return nil
	})
}
