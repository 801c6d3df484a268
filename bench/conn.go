package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Media types that servers answer in.
const (
	Protobuf        = "application/vnd.kubernetes.protobuf"
	JSON            = "application/json"
	PartialJSON     = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	PartialProtobuf = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	Table           = "application/json;as=Table;v=v1;g=meta.k8s.io"
)

// Buffers of connections: of those that read long bodies, and of those that wait.
const (
	largeBuffer = 64 << 10
	smallBuffer = 4 << 10
)

// call is one request.
type call struct {
	method   string // "" means GET
	path     string // with its query
	accept   string
	encoding string // Accept-Encoding, "" for none
	kind     string // Content-Type of body
	body     []byte
}

// link sends requests one after the other, over an HTTP/1.1 connection or by streams of a shared
// HTTP/2 connection.
type link interface {
	roundTrip(r *call) (*http.Response, error)
	// abort ends the current request and all later ones with an error.
	abort()
	close()
}

// conn sends requests, one at a time, and bounds their time.
type conn struct {
	link
	ctx   context.Context // ends the link
	timer *time.Timer     // see limit
	late  atomic.Bool     // the time of a request was over
	chunk []byte          // for draining bodies
}

// dial opens a connection, TLS handshake included. It is closed when ctx ends.
func (t *Target) dial(ctx context.Context, buffer int) (*conn, error) {
	header, err := t.credentials(ctx)
	if err != nil {
		return nil, err
	}
	if header.Get("User-Agent") == "" {
		header.Set("User-Agent", "larder-bench")
	}
	if t.shared != nil {
		l, err := t.dialHTTP2(ctx, header)
		if err != nil {
			return nil, err
		}
		if l != nil {
			t.spoken.Store("HTTP/2")
			return &conn{link: l, ctx: ctx}, nil
		}
	}
	l, err := t.dialHTTP1(ctx, header, buffer)
	if err != nil {
		return nil, err
	}
	t.spoken.Store("HTTP/1.1")
	return &conn{link: l, ctx: ctx}, nil
}

// ErrTimeout is wrapped by the errors of requests that took longer than Target.Timeout.
var ErrTimeout = errors.New("bench: timeout")

// limit makes the current request, or the next one, fail after some time; 0 leaves the time
// unlimited. A conn whose time was over cannot be used again.
func (c *conn) limit(d time.Duration) {
	if d > 0 {
		c.timer = time.AfterFunc(d, func() {
			c.late.Store(true)
			c.abort()
		})
	}
}

// unlimit takes the limit back.
func (c *conn) unlimit() {
	if c.timer != nil && !c.timer.Stop() {
		c.late.Store(true)
	}
	c.timer = nil
}

// explain makes an error that limit has caused an ErrTimeout.
func (c *conn) explain(err error, limit time.Duration) error {
	if err == nil || c.ctx.Err() != nil || !c.late.Load() {
		return err
	}
	return fmt.Errorf("%w after %v: %w", ErrTimeout, limit, err)
}

// do sends a request, reads the whole answer within a time, and returns the length of its body.
// An answer other than 2xx is an error that holds the beginning of the body.
func (c *conn) do(r call, limit time.Duration) (resp *http.Response, n int64, err error) {
	c.limit(limit)
	defer c.unlimit()
	if resp, err = c.send(r); err == nil {
		if n, err = c.drain(resp); err != nil {
			err = fmt.Errorf("bench: body of %s: %w", r.path, err)
		}
	}
	return resp, n, c.explain(err, limit)
}

// send sends a request and reads the head of the answer. An answer other than 2xx is returned
// with a statusError.
func (c *conn) send(r call) (*http.Response, error) {
	if r.method == "" {
		r.method = http.MethodGet
	}
	resp, err := c.roundTrip(&r)
	if err != nil {
		return nil, fmt.Errorf("bench: %s %s: %w", r.method, r.path, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	const most = 1 << 20
	body, err := io.ReadAll(io.LimitReader(resp.Body, most)) // so that the connection can be used again
	if err != nil {
		return nil, fmt.Errorf("bench: body of %s: %w", r.path, err)
	}
	return resp, &statusError{resp.StatusCode, fmt.Sprintf("bench: %s %s: %d %s: %s", r.method, r.path, resp.StatusCode, http.StatusText(resp.StatusCode), message(body))}
}

// drain discards the body of an answer and returns its length.
func (c *conn) drain(resp *http.Response) (n int64, err error) {
	if c.chunk == nil {
		c.chunk = make([]byte, largeBuffer)
	}
	for {
		m, err := resp.Body.Read(c.chunk)
		n += int64(m)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// statusError is an answer other than 2xx.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

// statusOf returns the status of the answer that an error is about, 0 if there was no answer.
func statusOf(err error) int {
	var refused *statusError
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &refused):
		return refused.status
	}
	return 0
}

// message returns the message of a Status, or the beginning of any other body.
func message(body []byte) string {
	const most = 200
	var status metav1.Status
	var unknown runtime.Unknown
	binary, isBinary := bytes.CutPrefix(body, []byte("k8s\x00"))
	switch {
	case isBinary && unknown.Unmarshal(binary) == nil && status.Unmarshal(unknown.Raw) == nil && status.Message != "":
		return status.Message
	case json.Unmarshal(body, &status) == nil && status.Message != "":
		return status.Message
	}
	return strings.ToValidUTF8(string(body[:min(most, len(body))]), "?")
}

// retryAfter is how long a client waits before it sends the request again, -1 if the answer does
// not say. Servers of Kubernetes send seconds.
func retryAfter(resp *http.Response) time.Duration {
	const most = 600
	if n, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 31); err == nil && n <= most {
		return time.Duration(n) * time.Second
	}
	return -1
}

// lane sends one request after the other over a connection that it opens when it
// has none: at first, after an error, and when the server said it would close.
type lane struct {
	t    *Target
	conn *conn
}

// do sends a request and reads the answer. Where the Target wants it, a request that is
// refused for a while is sent again after it.
func (l *lane) do(ctx context.Context, c call) (outcome, error) {
	const most = 10 // times
	var o outcome
	for {
		after, err := l.try(ctx, c, &o)
		if err == nil || !l.t.RetryAfter || after < 0 || o.status != http.StatusTooManyRequests || o.retries >= most {
			return o, err
		}
		if err := sleep(ctx, after); err != nil {
			return o, err
		}
		o.retries++
	}
}

// dialError says that there was no connection to send a request over.
type dialError struct{ error }

// Unwrap returns why.
func (e *dialError) Unwrap() error { return e.error }

// reconnectDelay is how long a lane waits when it gets no connection, so that a server that has
// ended does not keep the client busy.
const reconnectDelay = 10 * time.Millisecond

// try sends a request once. after is for how long the server asks to wait, -1 if it does not.
func (l *lane) try(ctx context.Context, c call, o *outcome) (after time.Duration, err error) {
	if l.conn == nil {
		if l.conn, err = l.t.dial(ctx, largeBuffer); err != nil {
			l.conn = nil
			_ = sleep(ctx, reconnectDelay)
			return -1, &dialError{err}
		}
	}
	resp, n, err := l.conn.do(c, l.t.Timeout)
	o.bytes, o.status = n, 0
	if resp == nil || resp.Close || l.conn.late.Load() || err != nil && statusOf(err) == 0 {
		l.close()
	}
	if resp == nil {
		return -1, err
	}
	o.status = resp.StatusCode
	return retryAfter(resp), err
}

func (l *lane) close() {
	if l.conn != nil {
		l.conn.close()
		l.conn = nil
	}
}
