// Package unary makes unary gRPC calls over one HTTP/2 connection, at about half the cost of a
// grpc.ClientConn. A caller writes its own request together with those of waiting callers.
//
// A connection is used in one of two ways:
//
//   - [Conn.Run] reads all responses on one goroutine, and many calls may run at the same time.
//   - [Conn.RunInline] is for one call at a time. The caller reads the response, which saves two switches between
//     goroutines.
//
// # Guarantees
//
//   - A call that fails with ErrUnsent has had no effect and will have none: either no byte of it was written to the
//     connection, or the peer reported that it did not process it. The caller may retry it elsewhere.
//   - After any other error that does not come from the peer, the peer may have processed the
//     request, or may do so later. The package sends nothing twice.
//   - Errors are gRPC's: a status with the peer's code and message, Canceled or DeadlineExceeded when
//     the caller's context ended, Unavailable when the connection broke, Internal when the peer reset the
//     stream.
//   - A call ends with its context, and the peer gets RST_STREAM. A caller that is writing to a peer that does not read
//     waits longer, up to a few Ticks. An inline call ends its connection instead.
//
// # Limits
//
// A request is sent only if it fits into the peer's current windows as a whole, and is not larger than etcd's client
// allows. There are no interceptors, no compression and no per-call credentials. A broken connection is not reopened.
//
// # Slow peers
//
// If a call takes more than one or two Ticks, the connection accepts no more calls, so that its owner may use another
// peer. Running calls continue, and the connection ends with the last of them. While calls run and the peer sends
// nothing, Run sends a ping, as gRPC's keepalive does. An inline call fails after one Tick.
//
// # Locks and goroutines
//
// Conn.mu is a leaf. Only Open reads and writes the connection while it holds it. Run starts two
// goroutines and waits for them.
package unary

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrUnsent says that a call has had no effect and will have none.
var ErrUnsent = errors.New("unary: not sent")

// Tick is how often a connection is checked.
const Tick = time.Second

const (
	frameSize     = 16 << 10 // HTTP/2's default
	defaultWindow = 65535
	// streamWindow and connectionWindow are the windows for the peer's data, per call and for all calls.
	streamWindow     = 4 << 20
	connectionWindow = 16 << 20
	// maxHeaders limits the size of headers and trailers (SETTINGS_MAX_HEADER_LIST_SIZE), and of each field.
	maxHeaders = 256 << 10
	// While calls run, a peer that sends nothing for keepAfter ticks gets a ping. After silentAfter ticks the
	// connection ends.
	keepAfter, silentAfter = 10, 15
	// stuckAfter is the number of ticks that a write may take. Then the connection ends.
	stuckAfter = 3
	// maxFlushes limits how often one caller writes the frames of other callers.
	maxFlushes = 4
)

// Conn is a connection to a peer.
type Conn struct {
	conn   net.Conn
	reader *http2.Framer // used by Open, and then by Run or the one inline call
	tick   time.Duration // Tick, except in tests
	ended  chan struct{} // closed when no new calls are accepted
	kick   chan struct{} // has an element when something must be written soon
	calls  sync.Pool     // of *call, for reuse

	mu      sync.Mutex
	framer  *http2.Framer // writes to out
	out     bytes.Buffer  // bytes to write
	spare   bytes.Buffer  // being written, or empty
	writing bool          // a goroutine writes
	encoder *hpack.Encoder
	decoder *hpack.Decoder // of headers
	headers headers
	block   bytes.Buffer // the output of encoder
	head    []hpack.HeaderField

	inFlight map[uint32]*call // by stream
	next     uint32           // stream of the next call
	written  uint32           // requests of streams below it were written to conn, perhaps in part
	limit    uint32           // of concurrent calls
	window   int64            // of the connection, for requests
	opening  int64            // initial window of a call
	received uint32           // bytes of responses since the last window update
	frames   uint64           // counts read frames
	retired  bool             // says that ended is closed
	err      error            // why the connection cannot be used any more
}

// call is a running call. While it is in Conn.inFlight, Conn.mu guards it.
type call struct {
	done    chan struct{} // has an element once the call is over
	buffer  []byte
	unacked uint32 // bytes of the response since the last window update
	http    string // HTTP status, "" before the headers
	code    string // gRPC status, "" before the trailers
	message string // gRPC's, percent-encoded
	err     error
}

// Open performs the HTTP/2 handshake over conn. It takes ownership of conn, and closes it after an error. Calls need a
// running Run.
func Open(ctx context.Context, conn net.Conn, scheme, authority, userAgent string, metadata ...hpack.HeaderField) (*Conn, error) {
	c := &Conn{
		conn: conn, tick: Tick, ended: make(chan struct{}), kick: make(chan struct{}, 1),
		inFlight: make(map[uint32]*call), next: 1, limit: 1 << 31, window: defaultWindow, opening: defaultWindow,
	}
	c.calls.New = func() any { return &call{done: make(chan struct{}, 1)} }
	c.encoder = hpack.NewEncoder(&c.block)
	c.head = append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: scheme}, {Name: ":path"}, {Name: ":authority", Value: authority},
		{Name: "content-type", Value: "application/grpc"}, {Name: "user-agent", Value: userAgent}, {Name: "te", Value: "trailers"},
	}, metadata...)
	c.out.WriteString(http2.ClientPreface)
	c.framer = http2.NewFramer(&c.out, nil)
	_ = c.framer.WriteSettings( // the framer writes to memory
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHeaders},
	)
	_ = c.framer.WriteWindowUpdate(0, connectionWindow-defaultWindow)
	c.reader = http2.NewFramer(nil, bufio.NewReaderSize(conn, 32<<10))
	c.reader.SetReuseFrames()
	c.reader.SetMaxReadFrameSize(frameSize)
	c.decoder = hpack.NewDecoder(4<<10, c.fieldLocked)
	c.decoder.SetMaxStringLength(maxHeaders)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err := c.handshake()
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("unary: %w", err)
	}
	return c, nil
}

// handshake sends the preface and reads the peer's settings. It fails if the peer speaks another protocol.
func (c *Conn) handshake() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.conn.Write(c.out.Bytes()); err != nil {
		return err
	}
	c.out.Reset()
	frame, err := c.reader.ReadFrame()
	if err != nil {
		return err
	}
	settings, ok := frame.(*http2.SettingsFrame)
	if !ok || settings.IsAck() {
		return fmt.Errorf("the peer begins with %v", frame.Header())
	}
	return c.settingsLocked(settings)
}

// Ended is closed when no new calls are accepted.
func (c *Conn) Ended() <-chan struct{} { return c.ended }

// Retire stops new calls. The connection ends after the running ones.
func (c *Conn) Retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retireLocked()
}

func (c *Conn) retireLocked() {
	if !c.retired {
		c.retired = true
		close(c.ended)
	}
	c.endIfIdleLocked()
}

func (c *Conn) endIfIdleLocked() {
	if c.retired && len(c.inFlight) == 0 {
		c.failLocked(status.Error(codes.Unavailable, "unary: the connection has been retired"))
	}
}

func (c *Conn) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.conn.Close()
	for stream, k := range c.inFlight {
		if stream < c.written {
			c.endLocked(stream, k, err)
		} else {
			c.endLocked(stream, k, ErrUnsent)
		}
	}
	c.retireLocked()
}

func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(err)
}

// endLocked ends a call, which then belongs to its caller.
func (c *Conn) endLocked(stream uint32, k *call, err error) {
	delete(c.inFlight, stream)
	k.err = err
	k.done <- struct{}{}
	c.endIfIdleLocked()
}

// Run reads responses until the connection breaks, or was retired and all calls have ended, or ctx ends. Then running
// calls fail. It may be called once.
func (c *Conn) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() { c.runChecks(ctx) })
	group.Go(func() { c.runFlushes(ctx) })
	var err error
	for err == nil {
		err = c.readFrame()
	}
	c.fail(status.Errorf(codes.Unavailable, "error reading from server: %v", err))
	cancel()
	group.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// runChecks checks the connection at each tick until ctx ends, and then ends the connection.
func (c *Conn) runChecks(ctx context.Context) {
	var last tick
	for ticks := time.Tick(c.tick); ; {
		select {
		case <-ticks:
			c.checkPeer(&last)
			c.scheduleFlush()
		case <-ctx.Done():
			c.fail(status.Error(codes.Canceled, "unary: the connection is closing"))
			return
		}
	}
}

// runFlushes writes bytes that no caller writes, until ctx ends.
func (c *Conn) runFlushes(ctx context.Context) {
	for {
		select {
		case <-c.kick:
			c.flush()
		case <-ctx.Done():
			return
		}
	}
}

// tick is the state at the last tick.
type tick struct {
	next   uint32
	frames uint64
	silent int // ticks
}

// checkPeer ends the connection if the peer sends nothing, and retires it if a call is slow.
func (c *Conn) checkPeer(last *tick) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.writing {
		_ = c.conn.SetWriteDeadline(time.Time{}) // TLS writes responses to key updates while it reads
	}
	if len(c.inFlight) == 0 || c.frames != last.frames {
		last.silent = 0
	} else if last.silent++; last.silent == keepAfter {
		_ = c.framer.WritePing(false, [8]byte{})
	} else if last.silent >= silentAfter {
		c.failLocked(status.Error(codes.Unavailable, "unary: the peer is silent"))
	}
	for stream := range c.inFlight {
		if stream < last.next {
			c.retireLocked()
			break
		}
	}
	last.next, last.frames = c.next, c.frames
}

func (c *Conn) readFrame() error {
	frame, err := c.reader.ReadFrame()
	if err != nil {
		return err
	}
	return c.take(frame)
}

// RunInline runs a connection for calls by [Conn.InvokeInline], one at a time. Nothing is read between calls. RunInline
// returns when the connection has ended, and ends it with ctx. It may be called once, instead of Run.
func (c *Conn) RunInline(ctx context.Context) error {
	select {
	case <-c.ended:
	case <-ctx.Done():
		c.fail(status.Error(codes.Canceled, "unary: the connection is closing"))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
