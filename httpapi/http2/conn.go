package http2

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/internal/invariants"
)

// Config configures a [Server]. All fields except MaxStreams, GoAwayChance and Leaving are required.
type Config struct {
	// Handler serves the request of c, which arrived at received.
	Handler func(c exchange.Carrier, received time.Time) *exchange.Exchange

	MaxStreams   int     // concurrent requests of one connection; 0 means 100
	GoAwayChance float64 // the probability that a request makes the server send GOAWAY
	// Leaving reports whether the next request on a connection that began at that time makes the server send GOAWAY.
	Leaving func(began time.Time) bool

	MaxHeaderBytes int           // of a request's header
	MaxBodyBytes   int64         // of a request's body
	HeaderTimeout  time.Duration // of the client's preface, and of each header
	IdleTimeout    time.Duration // between requests
	WriteTimeout   time.Duration // of one response
}

// The default of Config.MaxStreams (apiserver pkg/server/secure_serving.go).
const defaultStreams = 100

// Server has the state that all connections of a server share.
type Server struct {
	config Config
	pool   memoryPool
}

// New returns a server without connections.
func New(config Config) *Server {
	if config.MaxStreams == 0 {
		config.MaxStreams = defaultStreams
	}
	return &Server{config: config, pool: memoryPool{left: poolSize, shares: make(map[*Conn]int64)}}
}

// Conn is one connection.
type Conn struct {
	s     *Server
	conn  net.Conn
	began time.Time
	tls   *tls.ConnectionState
	tcp   *socket.TCP // below conn; nil: waits of writes are not measured

	// These belong to the goroutine of Serve.
	in          *bufio.Reader // nil while the connection waits
	ahead       []byte        // read and not yet in
	first       [1]byte
	framer      *http2.Framer // reads frames; writes to control, guarded by mu
	decoder     *hpack.Decoder
	block       block                          // the header that is being read
	headerUntil time.Time                      // when the header must be whole; zero if none has begun
	flood       flowcontrol.PassiveRateLimiter // limits frames that only cause work

	running sync.WaitGroup // the goroutines that serve streams or flush control frames

	writeMu sync.Mutex     // held by the goroutine that writes
	waiter  *socket.Waiter // guarded by writeMu: is notified when the write waits; may be nil
	unsent  *[]byte        // guarded by writeMu: frames that are sent with the next ones; nil if there are none

	pending atomic.Bool  // control is not empty
	slot    atomic.Value // of exchange.Carrier

	mu            sync.Mutex
	last          uint32               // guarded by mu: the latest stream
	lastAllowed   uint32               // guarded by mu: the highest ID of a stream that the client may open; GOAWAY lowers it
	streams       map[uint32]*stream   // guarded by mu: that are open
	serving       int                  // guarded by mu: goroutines of streams
	responding    int                  // guarded by mu: streams, open or reset, whose goroutines have not ended the response
	ending        int                  // guarded by mu: ends of streams that are being written
	window        int64                // guarded by mu: bytes that may be sent
	waiting       int                  // guarded by mu: writers that wait for a window
	initial       int64                // guarded by mu: the window of a new stream
	memory        memoryUsage          // guarded by mu
	memoryHolders map[*stream]struct{} // guarded by mu: the streams that memory accounting counts; nil without invariants
	control       []byte               // guarded by mu: frames that wait for writeMu
	endReason     error                // guarded by mu: why the connection has ended
	goingAway     goAwayState          // guarded by mu
	idleSince     time.Time            // guarded by mu

	expelled bool // guarded by the mu of the pool: the pool has ended the connection
}

// goAwayState is the progress of a GOAWAY.
type goAwayState uint8

const (
	goAwayNone   goAwayState = iota
	goAwaySent               // GOAWAY was sent; the server still accepts requests that were sent before the client reads it
	goAwayPinged             // a ping was also sent, whose acknowledgement shows that the client has read both
	goAwayDone               // the client has acknowledged, or has sent a GOAWAY: new streams are refused
)

var (
	errClosed = errors.New("httpapi: the connection is closed")
	errIdle   = errors.New("httpapi: the connection was idle")
)

// NewConn returns a connection over raw, whose TLS handshake has ended.
func (s *Server) NewConn(raw net.Conn) *Conn {
	c := &Conn{
		s: s, conn: raw, began: time.Now(), streams: make(map[uint32]*stream),
		lastAllowed: maxWindow, window: initialWindow, initial: initialWindow,
		memory: newMemoryUsage(&s.config), idleSince: time.Now(),
		flood: flowcontrol.NewTokenBucketPassiveRateLimiter(floodRate, floodBurst),
	}
	if invariants.Enabled {
		c.memoryHolders = make(map[*stream]struct{})
	}
	if secure, ok := raw.(interface{ ConnectionState() tls.ConnectionState }); ok {
		state := secure.ConnectionState()
		c.tls = &state
	}
	c.tcp = socket.TCPOf(raw)
	c.decoder = hpack.NewDecoder(initialTable, c.block.add)
	c.decoder.SetMaxStringLength(2 * s.config.MaxHeaderBytes) // more than a block may have
	c.framer = http2.NewFramer((*controlWriter)(c), (*frameReader)(c))
	c.framer.SetMaxReadFrameSize(initialFrame)
	_ = c.framer.WriteSettings(
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(s.config.MaxStreams)},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(s.config.MaxHeaderBytes)},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(streamWindow(&s.config))},
	)
	_ = c.framer.WriteWindowUpdate(0, uint32(c.memory.capacity-initialWindow))
	c.writeMu.Lock() // until handshake: nothing is written before the settings
	return c
}

// The initial settings of both sides (RFC 9113, 6.5.2 and 6.9.2).
const (
	initialWindow = 1<<16 - 1
	initialFrame  = 1 << 14
	initialTable  = 4 << 10
	maxWindow     = 1<<31 - 1
)

// Serve serves requests until the client or the server ends the connection, and closes it.
func (c *Conn) Serve() {
	defer c.running.Wait()
	var err error
	defer func() {
		if p := recover(); p != nil {
			klog.ErrorS(nil, "Connection panicked", "panic", p, "stack", exchange.Stack())
			err = http2.ConnectionError(http2.ErrCodeInternal)
		}
		c.closeWith(err)
	}()
	if err = c.handshake(); err == nil {
		err = c.read()
	}
}

// handshake sends the settings, and reads the client's preface and settings.
func (c *Conn) handshake() error {
	if c.tcp != nil {
		socket.WriterTo(c.conn) // writes get their deadlines when they have to wait
	}
	c.unlockWrites() // writes the settings, which NewConn has queued
	if c.tls != nil && !secureEnough(c.tls) {
		return http2.ConnectionError(http2.ErrCodeInadequateSecurity)
	}
	c.headerUntil = time.Now().Add(c.s.config.HeaderTimeout)
	if err := c.conn.SetReadDeadline(c.headerUntil); err != nil {
		return err
	}
	var preface [len(http2.ClientPreface)]byte
	if _, err := io.ReadFull((*frameReader)(c), preface[:]); err != nil {
		return err
	}
	if string(preface[:]) != http2.ClientPreface {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	frame, err := c.next()
	if err != nil {
		return err
	}
	if settings, ok := frame.(*http2.SettingsFrame); !ok || settings.IsAck() {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.headerUntil = time.Time{}
	return c.handle(frame)
}

// secureEnough reports whether TLS is secure enough (RFC 9113, 9.2.2): of the suites of TLS 1.2, those with
// ephemeral keys that also authenticate.
func secureEnough(state *tls.ConnectionState) bool {
	if state.Version >= tls.VersionTLS13 {
		return true
	}
	switch state.CipherSuite {
	case tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256:
		return state.Version == tls.VersionTLS12
	}
	return false
}

// read reads frames until the connection must end.
func (c *Conn) read() error {
	for {
		frame, err := c.next()
		if err == nil {
			err = c.handle(frame)
		}
		if stream, ok := errors.AsType[http2.StreamError](err); ok {
			if err := c.checkFlood(); err != nil {
				return err
			}
			c.resetStream(stream.StreamID, stream.Code)
			continue
		}
		if err != nil {
			return err
		}
	}
}

// next reads a frame.
func (c *Conn) next() (http2.Frame, error) {
	if err := (*frameReader)(c).wait(); err != nil {
		return nil, err
	}
	head, err := c.framer.ReadFrameHeader()
	var frame http2.Frame
	if err == nil {
		frame, err = c.framer.ReadFrameForHeader(head)
	}
	if errors.Is(err, http2.ErrFrameTooLarge) {
		err = http2.ConnectionError(http2.ErrCodeFrameSize)
	}
	if broken, ok := errors.AsType[http2.StreamError](err); ok && head.Type == http2.FrameHeaders {
		err = http2.ConnectionError(broken.Code) // without this block, later ones cannot be decoded
	}
	return frame, err
}

// goAwayWait limits the time in which a client must leave after a GOAWAY, and the time to send the last one.
const goAwayWait = time.Second

// closeWith ends all streams and closes the connection. A client that broke the protocol gets a GOAWAY with the code of
// err. An idle one gets NO_ERROR, so that it repeats a request that is on its way.
func (c *Conn) closeWith(err error) {
	c.endStreams(errClosed)
	code, broke := errors.AsType[http2.ConnectionError](err)
	if broke || errors.Is(err, errIdle) && c.headerUntil.IsZero() {
		c.sendLastGoAway(http2.ErrCode(code))
	}
	(*frameReader)(c).close()
	c.conn.Close()
}

// sendLastGoAway sends the reason why the connection ends, and reads the client's remaining bytes. Otherwise the
// kernel would reset the connection because of unread bytes, and the client might not get the reason.
func (c *Conn) sendLastGoAway(code http2.ErrCode) {
	if c.tcp != nil {
		c.tcp.Release()
	}
	_ = c.conn.SetDeadline(time.Now().Add(goAwayWait)) // if conn is closed, the write fails
	c.mu.Lock()
	last := c.last
	c.mu.Unlock()
	c.writeMu.Lock()
	err := http2.NewFramer(c.conn, nil).WriteGoAway(last, code, nil)
	c.writeMu.Unlock()
	half, ok := c.conn.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		return
	}
	var rest [4 << 10]byte
	for err == nil {
		_, err = c.conn.Read(rest[:])
	}
}

// endStreams stops all work on the connection. Its streams fail with the error why.
func (c *Conn) endStreams(why error) {
	c.mu.Lock()
	if c.endReason == nil {
		c.endReason = why
	}
	open := slices.Collect(maps.Values(c.streams))
	c.mu.Unlock()
	for _, st := range open {
		st.clientLeft(why)
	}
}

// broken ends the connection because a write to it failed. The next read then fails.
func (c *Conn) broken() { socket.CloseSocket(c.conn) }

// GoAway asks the client to send no more requests on this connection. The server serves requests that were already
// sent, but not more than Config.MaxStreams, and then ends the connection.
func (c *Conn) GoAway() { c.goAway(goAwayPinged) }

// goAwayMark is the data of the ping after a GOAWAY.
var goAwayMark = [8]byte{'g', 'o', ' ', 'a', 'w', 'a', 'y', '.'}

func (c *Conn) goAway(how goAwayState) {
	c.mu.Lock()
	if c.endReason != nil || c.goingAway >= how {
		c.mu.Unlock()
		return
	}
	if c.goingAway == goAwayNone && how != goAwayDone {
		c.lastAllowed = uint32(min(int64(c.last)+2*int64(c.s.config.MaxStreams), maxWindow)) // the ids of a client are odd
		_ = c.framer.WriteGoAway(maxWindow, http2.ErrCodeNo, nil)
	}
	switch how {
	case goAwayPinged:
		_ = c.framer.WritePing(false, goAwayMark)
	case goAwayDone:
		c.lastAllowed = c.last
		_ = c.framer.WriteGoAway(c.last, http2.ErrCodeNo, nil)
	}
	c.goingAway = how
	c.markIdleLocked()
	c.mu.Unlock()
	c.flushControl()
}

// Retire reports whether the connection is idle and its client had time to read the GOAWAY. If so, the
// connection serves no more requests, and the caller closes it.
func (c *Conn) Retire() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	heard := c.goingAway == goAwayDone || time.Since(c.idleSince) > goAwayWait
	if !heard || c.busyLocked() || c.endReason != nil {
		return false
	}
	c.endReason = errClosed
	return true
}

// busyLocked reports whether the connection has work to do.
func (c *Conn) busyLocked() bool { return len(c.streams) > 0 || c.serving > 0 || c.ending > 0 }

// HasPending reports whether the client waits for a response or may still send a request.
func (c *Conn) HasPending() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.serving > 0 || c.ending > 0 || c.endReason == nil && len(c.streams) == 0
}

const (
	floodBurst = 2000
	floodRate  = 200 // per second
)

// checkFlood counts a frame that only causes work. It returns an error, which ends the connection, if there are too
// many.
func (c *Conn) checkFlood() error {
	if !c.flood.TryAccept() {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}
