package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"

	"github.com/larder-io/larder/bench"
)

// client sends the requests of one component. Over HTTP/2, all requests share one connection, as in client-go; over
// HTTP/1.1, each watch has a connection.
type client struct {
	origin, agent string
	transport     http.RoundTripper
}

// newClient returns a client whose connections close when ctx ends.
func newClient(ctx context.Context, host, agent string, identity tls.Certificate, byHTTP2 bool) *client {
	config := &tls.Config{Certificates: []tls.Certificate{identity}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}
	return &client{origin: "https://" + host, agent: agent, transport: bench.NewTransport(ctx, config, byHTTP2)}
}

// send sends a request and returns the response. The caller closes its body.
func (c *client) send(ctx context.Context, r *bench.Request) (*http.Response, error) {
	return bench.Send(ctx, c.transport, c.origin, c.agent, r)
}

// do sends a request and returns the body of the response.
func (c *client) do(ctx context.Context, r *bench.Request) ([]byte, error) {
	resp, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("cluster: %s %s: %w", r.Method, r.Path, err)
	}
	return body, nil
}
