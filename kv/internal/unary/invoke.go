package unary

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"net/http"
	"net/url"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	prefix = 5 // bytes before each message: whether it is compressed, and its length
	// maxKept is the capacity in bytes up to which buffers are reused.
	maxKept = 256 << 10
	// maxRequest limits the bytes of a request. etcd's client has the same limit. It gets larger requests, and
	// refuses them with its own error.
	maxRequest = 2 << 20
)

// Invoke makes a call and reads the answer into answer. It does not keep the request.
func (c *Conn) Invoke(ctx context.Context, method string, request, answer proto.Message) error {
	k, stream, err := c.start(ctx, method, request, false)
	if err != nil {
		return err
	}
	select {
	case <-k.done:
	case <-ctx.Done():
		if c.abandon(stream, k) {
			return status.FromContextError(ctx.Err()).Err()
		}
		<-k.done // it is over already
	}
	return c.finish(k, answer)
}

// InvokeInline is Invoke for a connection that [Conn.RunInline] runs: it reads the answer on the
// caller's goroutine, which saves two switches between goroutines. If ctx ends, or the peer does
// not answer within a Tick, the connection ends.
func (c *Conn) InvokeInline(ctx context.Context, method string, request, answer proto.Message) error {
	defer context.AfterFunc(ctx, func() { c.fail(status.FromContextError(ctx.Err()).Err()) })()
	_ = c.conn.SetReadDeadline(time.Now().Add(c.tick)) // fails if the connection has ended
	k, _, err := c.start(ctx, method, request, true)
	if err != nil {
		return err
	}
	for len(k.done) == 0 {
		if err := c.readFrame(); err != nil {
			c.fail(status.Errorf(codes.Unavailable, "error reading from server: %v", err))
		}
	}
	<-k.done
	return c.finish(k, answer)
}

func (c *Conn) start(ctx context.Context, method string, request proto.Message, inline bool) (*call, uint32, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, status.FromContextError(err).Err()
	}
	k := c.calls.Get().(*call)
	k.err, k.unacked, k.http, k.code, k.message = nil, 0, "", "", ""
	message, err := proto.MarshalOptions{}.MarshalAppend(append(k.answer[:0], make([]byte, prefix)...), request)
	if err != nil {
		return nil, 0, status.Errorf(codes.Internal, "unary: %v", err)
	}
	k.answer = message[:0]
	if len(message)-prefix > maxRequest {
		return nil, 0, ErrUnsent
	}
	binary.BigEndian.PutUint32(message[1:], uint32(len(message)-prefix))
	stream, err := c.begin(k, method, message, inline)
	return k, stream, err
}

// finish returns the result of a call that is over.
func (c *Conn) finish(k *call, answer proto.Message) error {
	err := k.err
	if err == nil {
		err = k.result(answer)
	}
	if cap(k.answer) <= maxKept {
		c.calls.Put(k)
	}
	return err
}

// begin copies a request to the output and sends it.
func (c *Conn) begin(k *call, method string, message []byte, inline bool) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := int64(len(message))
	if c.retired || len(c.underWay) >= int(c.limit) || size > c.window || size > c.opening {
		return 0, ErrUnsent
	}
	stream := c.next
	c.next += 2
	c.window -= size
	c.underWay[stream] = k
	if c.next > math.MaxInt32 { // now, because other calls may begin while this one writes
		c.retireLocked()
	}
	if c.pongIn--; c.pongIn <= 0 {
		c.pongLocked()
	}
	c.block.Reset()
	for _, field := range c.head {
		if field.Name == ":path" {
			field.Value = method
		}
		_ = c.encoder.WriteField(field)
	}
	_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.block.Bytes(), EndHeaders: true})
	for len(message) > frameSize {
		_ = c.framer.WriteData(stream, false, message[:frameSize])
		message = message[frameSize:]
	}
	_ = c.framer.WriteData(stream, true, message)
	if !c.writing {
		c.writing = true
		if !inline {
			c.mu.Unlock()
			runtime.Gosched() // others that are about to call may join
			c.mu.Lock()
		}
		c.writeLocked()
	}
	return stream, nil
}

// flush writes the bytes in out, unless another goroutine is writing.
func (c *Conn) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.writing {
		c.writing = true
		c.writeLocked()
	}
}

// writeLocked writes until out is empty, but at most maxFlushes times, and leaves the rest to
// runFlushes. It unlocks mu while it writes.
func (c *Conn) writeLocked() {
	for range maxFlushes {
		if c.err != nil || c.out.Len() == 0 {
			break
		}
		c.out, c.spare = c.spare, c.out
		c.given = c.next
		full := &c.spare
		c.mu.Unlock()
		_ = c.conn.SetWriteDeadline(time.Now().Add(stuckAfter * c.tick))
		_, err := c.conn.Write(full.Bytes())
		c.mu.Lock()
		if full.Reset(); full.Cap() > maxKept {
			*full = bytes.Buffer{}
		}
		if err != nil {
			c.failLocked(status.Errorf(codes.Unavailable, "error writing to server: %v", err))
		}
	}
	c.writing = false
	if c.out.Len() > 0 && c.err == nil {
		c.scheduleFlush()
	}
}

// abandon cancels a call and notifies the peer. It reports false if the call is over already.
func (c *Conn) abandon(stream uint32, k *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.underWay[stream] != k {
		return false
	}
	delete(c.underWay, stream)
	_ = c.framer.WriteRSTStream(stream, http2.ErrCodeCancel)
	c.scheduleFlush()
	c.endIfIdleLocked()
	return true
}

// result reads the answer of a call that is over, as gRPC does.
func (c *call) result(answer proto.Message) error {
	switch {
	case c.http != "200":
		return httpError(c.http)
	case c.code == "":
		return status.Error(codes.Internal, "server closed the stream without sending trailers")
	case c.code != "0":
		code, err := strconv.ParseUint(c.code, 10, 32)
		if err != nil || code == 0 { // code 0 would not be an error
			return status.Errorf(codes.Internal, "malformed grpc-status %q", c.code)
		}
		message, err := url.PathUnescape(c.message)
		if err != nil { // malformed
			message = c.message
		}
		return status.Error(codes.Code(code), message)
	case len(c.answer) < prefix || c.answer[0] != 0 || int(binary.BigEndian.Uint32(c.answer[1:])) != len(c.answer)-prefix:
		return status.Error(codes.Internal, "malformed answer")
	}
	if err := proto.Unmarshal(c.answer[prefix:], answer); err != nil {
		return status.Errorf(codes.Internal, "malformed answer: %v", err)
	}
	return nil
}

// httpError is the error of an answer that is not gRPC's, from a proxy for example.
func httpError(answered string) error {
	code := codes.Unknown
	number, _ := strconv.Atoi(answered)
	switch number {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		code = codes.Unavailable
	}
	return status.Errorf(code, "unexpected HTTP status code received from server: %s (%s)", answered, http.StatusText(number))
}
