package kv

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
)

// directTimeout bounds a direct request. One that takes longer is repeated through etcd's
// client, maybe to another member.
const directTimeout = time.Second

// direct sends a cluster the same request again and again, at a fraction of the cost of
// etcd's client: over an HTTP/2 connection of its own, on the caller's goroutine, which
// writes and reads by itself (E8). BenchmarkRevision shows both.
//
// It knows no error handling. Whatever goes wrong closes its connection, and the request is
// left to etcd's client, which sends it again, waits, moves between members and says what
// is wrong. Run connects again, to one member after the other.
type direct struct {
	*dialer
	body    []byte // of each request
	logger  *slog.Logger
	wanted  chan struct{} // has an element when there is no connection
	answers atomic.Uint64

	mu   sync.Mutex  // held during a request
	conn *directConn // nil while there is none
}

// newDirect returns nil if it cannot reach a member: one with a unix socket, for example.
func newDirect(endpoints []string, config *tls.Config, logger *slog.Logger) *direct {
	d := &direct{dialer: newDialer(endpoints, config), logger: logger, wanted: make(chan struct{}, 1)}
	if d.dialer == nil {
		return nil
	}
	question, err := proto.Marshal(revisionRequest())
	if err != nil {
		return nil
	}
	d.body = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(question))), question...)
	d.wanted <- struct{}{}
	return d
}

// revisionRequest reads nothing but the header, linearizably.
func revisionRequest() *etcdserverpb.RangeRequest {
	return &etcdserverpb.RangeRequest{Key: []byte(compactionKey), CountOnly: true}
}

// run connects whenever there is no connection, until ctx ends.
func (d *direct) run(ctx context.Context) error {
	defer d.replace(nil)
	delay, answers := retryFirst, uint64(0)
	for turn := 0; ; turn++ {
		select {
		case <-d.wanted:
		case <-ctx.Done():
			return ctx.Err()
		}
		if now := d.answers.Load(); now > answers {
			delay, answers = retryFirst, now
		}
		if turn > 0 {
			if err := sleep(ctx, delay); err != nil {
				return err
			}
			delay = min(2*delay, retryMax)
		}
		conn, err := d.connect(ctx, d.members[turn%len(d.members)])
		if err != nil {
			d.logger.Debug("no direct connection to etcd", "error", err)
			d.want()
			continue
		}
		d.replace(conn)
	}
}

func (d *direct) want() {
	select {
	case d.wanted <- struct{}{}:
	default:
	}
}

func (d *direct) replace(conn *directConn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != nil {
		d.conn.Close()
	}
	d.conn = conn
}

func (d *direct) connect(ctx context.Context, member *url.URL) (*directConn, error) {
	ctx, cancel := context.WithTimeout(ctx, directTimeout)
	defer cancel()
	conn, err := d.dial(ctx, member)
	if err != nil {
		return nil, err
	}
	return newDirectConn(conn, member), nil
}

// ask returns the header of an answer that the member gave after the call, nil if it could
// not be had over the direct connection.
func (d *direct) ask(ctx context.Context) *etcdserverpb.ResponseHeader {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn == nil {
		return nil
	}
	header, err := d.conn.ask(ctx, d.body)
	if err != nil {
		d.logger.Debug("direct connection to etcd failed", "error", err)
		d.conn.Close()
		d.conn = nil
		d.want()
		return nil
	}
	d.answers.Add(1)
	return header
}

const (
	http2Window = 65535 // of a new connection, in both directions
	// windowDue is how many bytes are received before the window is updated.
	windowDue = http2Window / 4
	// pongAfter is how many requests may go before a ping is answered. gRPC's servers
	// ping whenever data comes and no ping is under way, to measure the bandwidth: answered
	// at once, each ping would be followed by another, and wake the reader once more before
	// the answer (B10).
	pongAfter = 64
	// maxPings is how many pings may wait for their answers.
	maxPings = 4
	// maxAnswer bounds the bytes of an answer; a header has some 30.
	maxAnswer = 4 << 10
)

// directConn is a connection over which one request at a time is sent, as gRPC sends it.
type directConn struct {
	net.Conn
	framer     *http2.Framer // writes to out
	out        bytes.Buffer
	encoder    *hpack.Encoder // writes to block
	block      bytes.Buffer
	decoder    *hpack.Decoder
	head       []hpack.HeaderField
	stream     uint32    // of the next request
	sendWindow int64     // bytes of requests
	received   uint32    // bytes of answers, since the window was opened
	pings      [][8]byte // that are not answered
	pongIn     int       // requests until they are
	status     string    // of HTTP, of the present answer
	grpcStatus string    // gRPC's status
}

func newDirectConn(conn net.Conn, member *url.URL) *directConn {
	c := &directConn{Conn: conn, stream: 1, sendWindow: http2Window}
	c.out.WriteString(http2.ClientPreface)
	c.framer = http2.NewFramer(&c.out, bufio.NewReader(conn))
	c.framer.SetReuseFrames()
	c.framer.SetMaxReadFrameSize(16 << 10) // HTTP/2's default, which a peer must not exceed
	_ = c.framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	c.encoder = hpack.NewEncoder(&c.block)
	c.decoder = hpack.NewDecoder(4<<10, c.field)
	c.decoder.SetMaxStringLength(maxAnswer)
	c.head = []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: member.Scheme},
		{Name: ":path", Value: etcdserverpb.KV_Range_FullMethodName}, {Name: ":authority", Value: member.Host},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}
	return c
}

// ask sends a request and reads the answer. After an error the connection is of no
// use.
func (c *directConn) ask(ctx context.Context, body []byte) (*etcdserverpb.ResponseHeader, error) {
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := c.SetDeadline(time.Now().Add(directTimeout)); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil { // before the deadline was set
		return nil, err
	}
	if err := c.send(body); err != nil {
		return nil, err
	}
	answer, err := c.receive()
	if err != nil {
		return nil, err
	}
	if !stop() {
		return nil, ctx.Err()
	}
	var response etcdserverpb.RangeResponse
	if err := proto.Unmarshal(answer, &response); err != nil {
		return nil, err
	}
	if response.Header == nil {
		return nil, errors.New("answer without a header")
	}
	return response.Header, nil
}

func (c *directConn) send(body []byte) error {
	if c.stream > math.MaxInt32 || c.sendWindow < int64(len(body)) {
		return errors.New("connection is used up")
	}
	c.sendWindow -= int64(len(body))
	c.pong()
	c.block.Reset()
	for _, field := range c.head {
		_ = c.encoder.WriteField(field) // to memory
	}
	// Framing fails only for what is too long, which this is not; out cannot fail.
	_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.stream, BlockFragment: c.block.Bytes(), EndHeaders: true})
	_ = c.framer.WriteData(c.stream, true, body)
	_, err := c.Write(c.out.Bytes())
	c.out.Reset()
	return err
}

// pong answers pings that have waited long enough.
func (c *directConn) pong() {
	if c.pongIn--; c.pongIn > 0 && len(c.pings) < maxPings {
		return
	}
	for _, data := range c.pings {
		_ = c.framer.WritePing(true, data) // to memory
	}
	c.pings = c.pings[:0]
}

// receive reads the answer to the present request and returns its message.
func (c *directConn) receive() ([]byte, error) {
	var answer []byte
	c.status, c.grpcStatus = "", ""
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return nil, err
		}
		ended, of := false, c.stream
		switch frame := frame.(type) {
		case *http2.DataFrame:
			if len(answer)+len(frame.Data()) > maxAnswer {
				return nil, errors.New("answer is too long")
			}
			answer = append(answer, frame.Data()...)
			c.returnWindow(frame.Length)
			ended, of = frame.StreamEnded(), frame.StreamID
		case *http2.HeadersFrame:
			err = c.headers(frame)
			ended, of = frame.StreamEnded(), frame.StreamID
		default:
			err = c.control(frame)
		}
		switch {
		case err != nil:
			return nil, err
		case of != c.stream:
			return nil, errors.New("answer to another request")
		case ended:
			c.stream += 2
			return c.message(answer)
		}
	}
}

// message takes gRPC's frame off the message of a whole answer.
func (c *directConn) message(answer []byte) ([]byte, error) {
	switch {
	case c.status != "200" || c.grpcStatus != "0":
		return nil, fmt.Errorf("status %s, %s", c.status, c.grpcStatus)
	case len(answer) < 5 || answer[0] != 0 || binary.BigEndian.Uint32(answer[1:]) != uint32(len(answer)-5):
		return nil, io.ErrUnexpectedEOF
	}
	return answer[5:], nil
}

// headers reads a block of headers, which is compressed with the ones before.
func (c *directConn) headers(frame *http2.HeadersFrame) error {
	if !frame.HeadersEnded() {
		return errors.New("headers are too long")
	}
	_, err := c.decoder.Write(frame.HeaderBlockFragment())
	return errors.Join(err, c.decoder.Close())
}

func (c *directConn) field(field hpack.HeaderField) {
	switch field.Name {
	case ":status":
		c.status = field.Value
	case "grpc-status":
		c.grpcStatus = field.Value
	}
}

// returnWindow lets the peer send as much again as it has sent, once that is worth a frame.
func (c *directConn) returnWindow(used uint32) {
	if c.received += used; c.received >= windowDue {
		_ = c.framer.WriteWindowUpdate(0, c.received)
		c.received = 0
	}
}

// control handles the frames that concern the connection, not the answer. Acknowledgements
// go out with the next request, pongs some requests later.
func (c *directConn) control(frame http2.Frame) error {
	switch frame := frame.(type) {
	case *http2.SettingsFrame:
		if frame.IsAck() {
			return nil
		}
		if size, set := frame.Value(http2.SettingHeaderTableSize); set {
			c.encoder.SetMaxDynamicTableSizeLimit(size)
		}
		return c.framer.WriteSettingsAck()
	case *http2.PingFrame:
		if frame.IsAck() {
			return nil
		}
		if len(c.pings) == 0 {
			c.pongIn = pongAfter
		}
		if c.pings = append(c.pings, frame.Data); len(c.pings) == maxPings {
			c.pong()
		}
	case *http2.WindowUpdateFrame:
		if frame.StreamID == 0 {
			c.sendWindow += int64(frame.Increment)
		}
	case *http2.GoAwayFrame, *http2.RSTStreamFrame, *http2.PushPromiseFrame, *http2.ContinuationFrame:
		return fmt.Errorf("%v", frame.Header())
	}
	return nil
}
