package bench

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// Media types of responses.
const (
	Protobuf        = "application/vnd.kubernetes.protobuf"
	JSON            = "application/json"
	PartialJSON     = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	PartialProtobuf = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	Table           = "application/json;as=Table;v=v1;g=meta.k8s.io"
)

// Sizes of read buffers: for long bodies, and for bodies that are read in small parts.
const (
	largeBuffer = 64 << 10
	smallBuffer = 4 << 10
)

// conn sends one request after the other, over its own HTTP/1.1 connection or a shared HTTP/2 connection. It
// connects before the first request, after an error, and after the server has announced that it closes.
type conn struct {
	t     *Target
	ctx   context.Context // its end closes the conn
	stuck bool            // whether the client leaves response bodies unread
	chunk []byte          // buffer of drain

	transport http.RoundTripper // sends the credentials of the kubeconfig's user; nil without a connection
	connected context.Context   // its end closes the connection or, over HTTP/2, cancels the requests
	end       context.CancelCauseFunc
	shared    *sharedTransport // nil over HTTP/1.1
	timer     *time.Timer      // see limit
}

func (t *Target) conn(ctx context.Context) *conn { return &conn{t: t, ctx: ctx} }

// close ends the current request and the connection.
func (c *conn) close() {
	if c.end != nil {
		c.end(nil)
	}
	if c.shared != nil {
		c.t.shared.release(c.shared)
	}
	c.transport, c.shared = nil, nil
}

func (c *conn) connect() (err error) {
	var plain http.RoundTripper
	if c.shared = c.t.shared.acquire(c.t); c.shared != nil {
		plain = c.shared
	} else {
		opened, err := dial(c.connected, c.t.host, c.t.tls)
		if err != nil {
			return err
		}
		if tcp, ok := underTLS(opened).(*net.TCPConn); ok && c.stuck {
			_ = tcp.SetReadBuffer(smallBuffer) // so that the kernel buffers few unread bytes
		}
		plain = &singleTransport{opened, bufio.NewReader(opened), bufio.NewWriterSize(opened, 2*smallBuffer)}
	}
	if c.transport, err = rest.HTTPWrappersForConfig(c.t.config, plain); err != nil {
		return fmt.Errorf("bench: kubeconfig: %w", err)
	}
	return nil
}

// ErrTimeout is wrapped by the errors of requests that took longer than Target.Timeout.
var ErrTimeout = errors.New("bench: timeout")

// limit makes the current or next request fail after d; 0 sets no limit. A connection is unusable after a timeout.
func (c *conn) limit(d time.Duration) {
	if d > 0 {
		end := c.end
		c.timer = time.AfterFunc(d, func() { end(ErrTimeout) })
	}
}

func (c *conn) stopTimer() {
	if c.timer != nil && !c.timer.Stop() {
		c.end(ErrTimeout)
	}
	c.timer = nil
}

// timedOut reports whether a request has timed out.
func (c *conn) timedOut() bool { return errors.Is(context.Cause(c.connected), ErrTimeout) }

// explain wraps an error that Target.Timeout has caused with ErrTimeout.
func (c *conn) explain(err error) error {
	if err == nil || !c.timedOut() {
		return err
	}
	return fmt.Errorf("%w after %v: %w", ErrTimeout, c.t.Timeout, err)
}

// send sends a request and reads the response header. It starts the Target's Timeout, which runs until the caller
// calls stopTimer. A response other than 2xx is returned with an error.
func (c *conn) send(r Request) (*http.Response, error) {
	if c.transport == nil {
		c.connected, c.end = context.WithCancelCause(c.ctx)
	}
	c.limit(c.t.Timeout)
	if c.transport == nil {
		if err := c.connect(); err != nil {
			return nil, err
		}
	}
	resp, err := Send(c.connected, c.transport, c.t.origin, cmp.Or(c.t.config.UserAgent, "larder-bench"), r)
	if resp != nil {
		c.t.protocol.Store(strings.TrimSuffix(resp.Proto, ".0"))
	}
	return resp, err
}

// drain writes the body of a response to w and returns its length.
func (c *conn) drain(resp *http.Response, w io.Writer) (n int64, err error) {
	if c.chunk == nil {
		c.chunk = make([]byte, largeBuffer)
	}
	return io.CopyBuffer(struct{ io.Writer }{w}, resp.Body, c.chunk) // io.Discard's own buffer is small
}

// retryAfter returns how long the client must wait before a retry, or -1 without a Retry-After header. API servers
// send it in seconds.
func retryAfter(resp *http.Response) time.Duration {
	const most = 600
	if n, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 31); err == nil && n <= most {
		return time.Duration(n) * time.Second
	}
	return -1
}

// do sends a request and reads the response. With Target.RetryAfter, it retries a request that got 429.
func (c *conn) do(r Request) (outcome, error) {
	const most = 10 // times
	var o outcome
	for {
		after, err := c.try(r, &o, io.Discard)
		if err == nil || !c.t.RetryAfter || after < 0 || o.status != http.StatusTooManyRequests || o.retries >= most {
			return o, err
		}
		if err := Sleep(c.ctx, after); err != nil {
			return o, err
		}
		o.retries++
	}
}

// reconnectDelay is the delay after a request without a response. It keeps the client from spinning while the
// server is down.
const reconnectDelay = 10 * time.Millisecond

// try sends a request once and writes the response body to w. after is as for retryAfter.
func (c *conn) try(r Request, o *outcome, w io.Writer) (after time.Duration, err error) {
	o.bytes, o.status = 0, 0
	resp, err := c.send(r)
	if err == nil {
		if o.bytes, err = c.drain(resp, w); err != nil {
			err = fmt.Errorf("bench: body of %s: %w", r.Path, err)
		}
	}
	c.stopTimer()
	err = c.explain(err)
	if resp == nil || resp.Close || c.timedOut() || err != nil && StatusOf(err) == 0 {
		c.close()
	}
	if resp == nil {
		_ = Sleep(c.ctx, reconnectDelay)
		return -1, err
	}
	o.status = resp.StatusCode
	return retryAfter(resp), err
}

// Ready waits until the server's /readyz returns 200.
func (t *Target) Ready(ctx context.Context) error {
	const pause = 5 * time.Millisecond
	own := t.conn(ctx)
	defer own.close()
	for {
		_, err := own.do(Request{Path: "/readyz", Accept: "*/*"})
		if err == nil {
			return nil
		}
		if t.stopped() || Sleep(ctx, pause) != nil {
			return fmt.Errorf("bench: not ready: %w", err)
		}
	}
}

// Fetch sends one request over a new connection, writes the body of the response to w and returns its size.
func (t *Target) Fetch(ctx context.Context, r Request, w io.Writer) (int64, error) {
	ctx, cut := t.graceful(ctx)
	defer cut()
	own := t.conn(ctx)
	defer own.close()
	var o outcome
	_, err := own.try(r, &o, w)
	return o.bytes, err
}

func (t *Target) fetch(ctx context.Context, r Request) error {
	_, err := t.Fetch(ctx, r, io.Discard)
	return err
}
