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
	// maxRequest limits the bytes of a request. etcd's client has the same limit. Larger requests are left to it, so
	// that the error is its own.
	maxRequest = 2 << 20
)

// Invoke makes a call and reads the response. It does not keep the request.
func (c *Conn) Invoke(ctx context.Context, method string, request, response proto.Message) error {
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
		<-k.done // it has ended
	}
	return c.finish(k, response)
}

// InvokeInline is Invoke for a connection that [Conn.RunInline] runs. It reads the response on the caller's goroutine,
// which saves two switches between goroutines. If ctx ends, or the peer does not respond within a Tick, the connection
// ends.
func (c *Conn) InvokeInline(ctx context.Context, method string, request, response proto.Message) error {
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
	return c.finish(k, response)
}

func (c *Conn) start(ctx context.Context, method string, request proto.Message, inline bool) (*call, uint32, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, status.FromContextError(err).Err()
	}
	k := c.calls.Get().(*call)
	k.err, k.unacked, k.http, k.code, k.message = nil, 0, "", "", ""
	message, err := proto.MarshalOptions{}.MarshalAppend(append(k.buffer[:0], make([]byte, prefix)...), request)
	if err != nil {
		return nil, 0, status.Errorf(codes.Internal, "unary: %v", err)
	}
	k.buffer = message[:0]
	if len(message)-prefix > maxRequest {
		return nil, 0, ErrUnsent
	}
	binary.BigEndian.PutUint32(message[1:], uint32(len(message)-prefix))
	stream, err := c.begin(k, method, message, inline)
	return k, stream, err
}

// finish returns the result of an ended call.
func (c *Conn) finish(k *call, response proto.Message) error {
	err := k.err
	if err == nil {
		err = k.result(response)
	}
	if cap(k.buffer) <= maxKept {
		c.calls.Put(k)
	}
	return err
}

// begin copies a request to the output and sends it.
func (c *Conn) begin(k *call, method string, message []byte, inline bool) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := int64(len(message))
	if c.retired || len(c.inFlight) >= int(c.limit) || size > c.window || size > c.opening {
		return 0, ErrUnsent
	}
	stream := c.next
	c.next += 2
	c.window -= size
	c.inFlight[stream] = k
	if c.next > math.MaxInt32 { // before other calls begin, while this one writes
		c.retireLocked()
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
			runtime.Gosched() // let concurrent callers join
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
		c.written = c.next
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

// abandon cancels a call and notifies the peer. It returns false if the call has already ended.
func (c *Conn) abandon(stream uint32, k *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inFlight[stream] != k {
		return false
	}
	delete(c.inFlight, stream)
	_ = c.framer.WriteRSTStream(stream, http2.ErrCodeCancel)
	c.scheduleFlush()
	c.endIfIdleLocked()
	return true
}

// result reads the response of an ended call, as gRPC does.
func (c *call) result(response proto.Message) error {
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
	case len(c.buffer) < prefix || c.buffer[0] != 0 || int(binary.BigEndian.Uint32(c.buffer[1:])) != len(c.buffer)-prefix:
		return status.Error(codes.Internal, "malformed response")
	}
	if err := proto.Unmarshal(c.buffer[prefix:], response); err != nil {
		return status.Errorf(codes.Internal, "malformed response: %v", err)
	}
	return nil
}

// httpError is the error of a response that is not gRPC's, for example from a proxy.
func httpError(received string) error {
	code := codes.Unknown
	number, _ := strconv.Atoi(received)
	switch number {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		code = codes.Unavailable
	}
	return status.Errorf(code, "unexpected HTTP status code received from server: %s (%s)", received, http.StatusText(number))
}
