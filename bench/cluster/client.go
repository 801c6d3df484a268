package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

//lint:file-ignore SA1019 x/net's transport takes one connection that was dialled; net/http's dials several at first.

// request is one request of a client.
type request struct {
	method, path string
	accept, kind string // media types, of the answer and of body
	body         []byte
	plain        bool // asks for no compression; client-go always asks for gzip
}

// client sends the requests of one component. By HTTP/2 all of them share its connections, as
// those of client-go do; by HTTP/1.1 each watch has a connection.
type client struct {
	host, agent string
	connections []http.RoundTripper // one for each connection by HTTP/2, one in all by HTTP/1.1
	sent        atomic.Uint64
}

// dialTimeout bounds the opening of a connection, as client-go's transport does.
const dialTimeout = 30 * time.Second

// newClient returns a client of so many connections by HTTP/2, 0 for HTTP/1.1. All connections
// are closed when ctx ends.
func newClient(ctx context.Context, host, agent string, identity tls.Certificate, connections int) *client {
	config := &tls.Config{Certificates: []tls.Certificate{identity}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}
	dial := func(dialing context.Context, network, address string, config *tls.Config) (net.Conn, error) {
		conn, err := (&tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: config}).DialContext(dialing, network, address)
		if err != nil {
			return nil, err
		}
		if connections > 0 && conn.(*tls.Conn).ConnectionState().NegotiatedProtocol != http2.NextProtoTLS {
			conn.Close()
			return nil, errors.New("cluster: the server speaks no HTTP/2")
		}
		context.AfterFunc(ctx, func() { conn.Close() })
		return conn, nil
	}
	c := &client{host: host, agent: agent}
	for range connections {
		c.connections = append(c.connections, &http2.Transport{TLSClientConfig: config, DialTLSContext: dial, DisableCompression: true})
	}
	if connections == 0 {
		const idle = 100
		c.connections = append(c.connections, &http.Transport{
			DisableCompression: true, MaxIdleConnsPerHost: idle,
			DialTLSContext: func(dialing context.Context, network, address string) (net.Conn, error) {
				return dial(dialing, network, address, config)
			},
		})
	}
	return c
}

// statusError is an answer other than 2xx.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

// status is that of an answer other than 2xx, 0 if there was none.
func status(err error) int {
	var refusal *statusError
	if errors.As(err, &refusal) {
		return refusal.status
	}
	return 0
}

// send sends a request and returns the answer, whose body the caller closes. An answer other
// than 2xx is a statusError.
func (c *client) send(ctx context.Context, r *request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, "https://"+c.host+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	req.Header.Set("User-Agent", c.agent)
	req.Header.Set("Accept", r.accept)
	if !r.plain {
		req.Header.Set("Accept-Encoding", "gzip")
	}
	if r.body != nil {
		req.Header.Set("Content-Type", r.kind)
	}
	resp, err := c.connections[c.sent.Add(1)%uint64(len(c.connections))].RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("cluster: %s %s: %w", r.method, r.path, err)
	}
	if resp.StatusCode/100 != 2 {
		const most = 300
		defer resp.Body.Close()
		body, _ := io.ReadAll(io.LimitReader(resp.Body, most)) // what came says enough
		return nil, &statusError{resp.StatusCode, fmt.Sprintf("cluster: %s %s: %s: %q", r.method, r.path, resp.Status, body)}
	}
	return resp, nil
}

// do sends a request and returns the body of the answer.
func (c *client) do(ctx context.Context, r *request) ([]byte, error) {
	resp, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("cluster: %s %s: %w", r.method, r.path, err)
	}
	return body, nil
}
