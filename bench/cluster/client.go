package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/larder-io/larder/bench"
)

// client sends the requests of one component. Over HTTP/2, all requests share its connections, as in client-go; over
// HTTP/1.1, each watch has a connection.
type client struct {
	origin, agent string
	connections   []http.RoundTripper // one for each connection by HTTP/2, one in all by HTTP/1.1
	sent          atomic.Uint64
}

// newClient returns a client with that many HTTP/2 connections, or an HTTP/1.1 client for 0. All
// connections are closed when ctx ends.
func newClient(ctx context.Context, host, agent string, identity tls.Certificate, connections int) *client {
	config := &tls.Config{Certificates: []tls.Certificate{identity}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}
	c := &client{origin: "https://" + host, agent: agent}
	for range max(1, connections) {
		c.connections = append(c.connections, bench.NewTransport(ctx, config, connections > 0))
	}
	return c
}

// send sends a request and returns the answer, whose body the caller closes.
func (c *client) send(ctx context.Context, r *bench.Request) (*http.Response, error) {
	return bench.Send(ctx, c.connections[c.sent.Add(1)%uint64(len(c.connections))], c.origin, c.agent, r)
}

// do sends a request and returns the body of the answer.
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
