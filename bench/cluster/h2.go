package cluster

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// request is one request of a client.
type request struct {
	method, path string
	accept, kind string // media types, of the answer and of body
	body         []byte
	plain        bool // the answer is not to be compressed; client-go always takes gzip
}

// sink takes an answer as it comes. Its methods are called one after the other, end at last
// and always. They must not wait: others share the connection.
type sink interface {
	head(status int)
	data(p []byte) // p is the caller's again when it returns
	end(err error) // nil: the answer is complete
}

// Windows of a connection, as client-go's have them; streams are not limited, as everything is
// read at once.
const (
	connWindow   = 1 << 30
	streamWindow = 1<<31 - 1
	usualWindow  = 65535 // before anybody has said anything
)

var (
	errGoAway    = errors.New("cluster: the server closes the connection")
	errCancelled = errors.New("cluster: cancelled")
)

// h2conn is a connection by HTTP/2 that many requests share. One goroutine reads it: a watch
// has none of its own.
type h2conn struct {
	raw    net.Conn
	framer *http2.Framer

	wmu   sync.Mutex // before mu
	out   *bufio.Writer
	enc   *hpack.Encoder
	block bytes.Buffer

	mu      sync.Mutex
	streams map[uint32]sink
	next    uint32
	window  int64 // bytes that may be sent
	grown   *sync.Cond
	failed  error // why no request can begin any more

	unacked int // bytes that came; the reader's
}

// newH2 begins to speak over a connection. run must be called then.
func newH2(raw net.Conn) (*h2conn, error) {
	c := &h2conn{raw: raw, streams: make(map[uint32]sink), next: 1, window: usualWindow, out: bufio.NewWriterSize(raw, 4<<10)}
	c.grown = sync.NewCond(&c.mu)
	c.enc = hpack.NewEncoder(&c.block)
	c.framer = http2.NewFramer(c.out, bufio.NewReaderSize(raw, 16<<10))
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.framer.SetReuseFrames()
	if _, err := c.out.WriteString(http2.ClientPreface); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	err := errors.Join(
		c.framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow}),
		c.framer.WriteWindowUpdate(0, connWindow), c.out.Flush())
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	return c, nil
}

// usable reports whether a request can begin.
func (c *h2conn) usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed == nil
}

// begin sends a request, whose answer goes to s, and returns the number of its stream. If it
// returns an error nothing goes to s.
func (c *h2conn) begin(host, agent string, r *request, s sink) (uint32, error) {
	if err := c.reserve(int64(len(r.body))); err != nil {
		return 0, err
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.mu.Lock()
	if c.failed != nil {
		c.mu.Unlock()
		return 0, c.failed
	}
	id := c.next
	c.next += 2
	c.streams[id] = s
	c.mu.Unlock()
	if err := c.write(id, host, agent, r); err != nil {
		c.mu.Lock()
		_, mine := c.streams[id]
		delete(c.streams, id)
		c.mu.Unlock()
		c.raw.Close() // the reader tells the others
		if !mine {
			return id, nil // s knows it already
		}
		return 0, fmt.Errorf("cluster: %w", err)
	}
	return id, nil
}

// reserve waits until so many bytes may be sent.
func (c *h2conn) reserve(n int64) error {
	if n > usualWindow {
		return fmt.Errorf("cluster: a body of %d bytes is too long", n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.failed == nil && c.window < n {
		c.grown.Wait()
	}
	c.window -= n
	return c.failed
}

// write writes the frames of a request. The caller holds wmu.
func (c *h2conn) write(id uint32, host, agent string, r *request) error {
	const largest = 16 << 10
	c.block.Reset()
	add := func(name, value string) {
		_ = c.enc.WriteField(hpack.HeaderField{Name: name, Value: value}) // a bytes.Buffer takes all
	}
	add(":method", r.method)
	add(":scheme", "https")
	add(":authority", host)
	add(":path", r.path)
	add("user-agent", agent)
	add("accept", r.accept)
	if !r.plain {
		add("accept-encoding", "gzip")
	}
	if r.body != nil {
		add("content-type", r.kind)
		add("content-length", strconv.Itoa(len(r.body)))
	}
	err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.block.Bytes(), EndHeaders: true, EndStream: r.body == nil})
	for rest := r.body; r.body != nil && err == nil; {
		n := min(len(rest), largest)
		err = c.framer.WriteData(id, n == len(rest), rest[:n])
		if rest = rest[n:]; len(rest) == 0 {
			break
		}
	}
	return errors.Join(err, c.out.Flush())
}

// cancel ends a stream whose answer nobody wants any more. Its sink is told.
func (c *h2conn) cancel(id uint32) {
	c.finish(id, errCancelled)
	c.control(func() error { return c.framer.WriteRSTStream(id, http2.ErrCodeCancel) })
}

// control writes a frame of the connection. Errors show when it is read.
func (c *h2conn) control(write func() error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	_ = write()
	_ = c.out.Flush()
}

// finish tells a sink that its answer has ended.
func (c *h2conn) finish(id uint32, err error) {
	c.mu.Lock()
	s := c.streams[id]
	delete(c.streams, id)
	last := errors.Is(c.failed, errGoAway) && len(c.streams) == 0
	c.mu.Unlock()
	if s != nil {
		s.end(err)
	}
	if last {
		c.raw.Close()
	}
}

func (c *h2conn) sink(id uint32) sink {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams[id]
}

// fail lets no request begin any more.
func (c *h2conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil || errors.Is(c.failed, errGoAway) {
		c.failed = err
	}
	c.grown.Broadcast()
}

// run reads the connection until it ends, and then ends all answers.
func (c *h2conn) run() {
	var err error
	for err == nil {
		err = c.read()
	}
	c.raw.Close()
	c.fail(err)
	c.mu.Lock()
	left := c.streams
	c.streams = make(map[uint32]sink)
	c.mu.Unlock()
	for _, s := range left {
		s.end(err)
	}
}

// read reads one frame.
func (c *h2conn) read() error {
	frame, err := c.framer.ReadFrame()
	var broken http2.StreamError
	if errors.As(err, &broken) {
		c.finish(broken.StreamID, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		c.headers(f)
	case *http2.DataFrame:
		c.receive(f)
	case *http2.RSTStreamFrame:
		c.finish(f.StreamID, fmt.Errorf("cluster: the server ended the stream: %v", f.ErrCode))
	case *http2.SettingsFrame:
		if !f.IsAck() {
			c.control(c.framer.WriteSettingsAck)
		}
	case *http2.PingFrame:
		if data := f.Data; !f.IsAck() {
			c.control(func() error { return c.framer.WritePing(true, data) })
		}
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			c.mu.Lock()
			c.window += int64(f.Increment)
			c.grown.Broadcast()
			c.mu.Unlock()
		}
	case *http2.GoAwayFrame:
		c.goAway(f.LastStreamID)
	}
	return nil
}

func (c *h2conn) headers(f *http2.MetaHeadersFrame) {
	if s := c.sink(f.StreamID); s != nil {
		status, _ := strconv.Atoi(f.PseudoValue("status"))
		if status >= http.StatusOK {
			s.head(status)
		}
	}
	if f.StreamEnded() {
		c.finish(f.StreamID, nil)
	}
}

func (c *h2conn) receive(f *http2.DataFrame) {
	if s := c.sink(f.StreamID); s != nil {
		s.data(f.Data())
	}
	if c.unacked += int(f.Length); c.unacked > connWindow/4 {
		n := uint32(c.unacked)
		c.unacked = 0
		c.control(func() error { return c.framer.WriteWindowUpdate(0, n) })
	}
	if f.StreamEnded() {
		c.finish(f.StreamID, nil)
	}
}

// goAway ends what the server will not answer any more. It may send a second one, which names
// an earlier stream.
func (c *h2conn) goAway(last uint32) {
	c.fail(errGoAway)
	c.mu.Lock()
	var lost []uint32
	for id := range c.streams {
		if id > last {
			lost = append(lost, id)
		}
	}
	idle := len(c.streams) == 0
	c.mu.Unlock()
	for _, id := range lost {
		c.finish(id, errGoAway)
	}
	if idle {
		c.raw.Close()
	}
}

// dialTLS opens a connection.
func dialTLS(ctx context.Context, host string, config *tls.Config) (*tls.Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	secured := tls.Client(raw, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, fmt.Errorf("cluster: %w", err)
	}
	return secured, nil
}
