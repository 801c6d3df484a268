package unary

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// ranger responds to Range requests with a value whose size is the request's limit.
type ranger struct {
	etcdserverpb.UnimplementedKVServer
}

// Range implements etcdserverpb.KVServer.
func (*ranger) Range(_ context.Context, in *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	return &etcdserverpb.RangeResponse{Kvs: []*mvccpb.KeyValue{{Value: make([]byte, in.Limit)}}}, nil
}

// peer is a server whose frames the test writes.
type peer struct {
	t      *testing.T
	c      *Conn
	conn   net.Conn
	framer *http2.Framer
}

// newPeer returns the peer of a connection.
func newPeer(t *testing.T) *peer {
	t.Helper()
	return newPeerOf(t, (*Conn).Run)
}

// newPeerOf returns the peer of a connection that run runs.
func newPeerOf(t *testing.T, run func(*Conn, context.Context) error) *peer {
	t.Helper()
	here, there := net.Pipe()
	t.Cleanup(func() { there.Close() })
	p := &peer{t: t, conn: there, framer: http2.NewFramer(there, there)}
	greeted := make(chan error)
	go func() {
		_, err := io.ReadFull(there, make([]byte, len(http2.ClientPreface)))
		for range 2 { // settings, and a window
			_, failed := p.framer.ReadFrame()
			err = errors.Join(err, failed)
		}
		greeted <- errors.Join(err, p.framer.WriteSettings())
	}()
	p.c = openAs(t, run, here, Tick, nil)
	if err := <-greeted; err != nil {
		t.Fatal(err)
	}
	return p
}

// put makes a call.
func (p *peer) put() <-chan error {
	result := make(chan error, 1)
	go func() {
		_, err := put(p.t.Context(), p.c, &etcdserverpb.PutRequest{})
		result <- err
	}()
	return result
}

// putInline makes a call whose response is read by the caller.
func (p *peer) putInline(ctx context.Context) <-chan error {
	result := make(chan error, 1)
	go func() {
		result <- p.c.InvokeInline(ctx, etcdserverpb.KV_Put_FullMethodName, &etcdserverpb.PutRequest{}, new(etcdserverpb.PutResponse))
	}()
	return result
}

// frame reads the next frame, skipping acknowledgements of settings.
func (p *peer) frame() string {
	p.t.Helper()
	for {
		frame, err := p.framer.ReadFrame()
		if err != nil {
			p.t.Fatal(err)
		}
		if frame.Header().Type != http2.FrameSettings {
			return frame.Header().String()
		}
	}
}

// request reads a request.
func (p *peer) request() {
	p.t.Helper()
	headers, data := p.frame(), p.frame()
	if !bytes.Contains([]byte(headers), []byte("HEADERS")) || !bytes.Contains([]byte(data), []byte("DATA")) {
		p.t.Fatalf("got %s, %s", headers, data)
	}
}

// respond sends a successful response.
func (p *peer) respond(stream uint32) {
	p.t.Helper()
	if _, err := p.conn.Write(encode(stream, newResponse())); err != nil {
		p.t.Fatal(err)
	}
}

// parts are the parts of a response on the wire.
type parts struct {
	status  string
	message []byte // with gRPC's prefix
	outcome []hpack.HeaderField
	cut     bool // the stream ends after the message
}

func newResponse() parts {
	message, err := proto.Marshal(&etcdserverpb.PutResponse{Header: &etcdserverpb.ResponseHeader{Revision: 42}})
	if err != nil {
		panic(err)
	}
	return parts{
		status:  "200",
		message: append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...),
		outcome: []hpack.HeaderField{{Name: "grpc-status", Value: "0"}},
	}
}

// encode returns the frames of a response.
func encode(stream uint32, a parts) []byte {
	var out, block bytes.Buffer
	framer, encoder := http2.NewFramer(&out, nil), hpack.NewEncoder(&block)
	headers := func(end bool, fields ...hpack.HeaderField) {
		block.Reset()
		for _, f := range fields {
			f.Sensitive = true // so that no dynamic table is used
			encoder.WriteField(f)
		}
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: end})
	}
	headers(false, hpack.HeaderField{Name: ":status", Value: a.status})
	framer.WriteData(stream, a.cut, a.message)
	if !a.cut {
		headers(true, a.outcome...)
	}
	return out.Bytes()
}

// TestMalformedResponsesAreErrors checks that incomplete and malformed responses are gRPC errors, and never ErrUnsent,
// after which a caller would repeat the call.
func TestMalformedResponsesAreErrors(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*parts)
		want   codes.Code
	}{
		"complete":             {func(*parts) {}, codes.OK},
		"HTTP status 503":      {func(a *parts) { a.status = "503" }, codes.Unavailable},
		"HTTP status 403":      {func(a *parts) { a.status = "403" }, codes.Unknown},
		"gRPC error":           {func(a *parts) { a.outcome[0].Value = "5" }, codes.NotFound},
		"no number":            {func(a *parts) { a.outcome[0].Value = "x" }, codes.Internal},
		"another zero":         {func(a *parts) { a.outcome[0].Value, a.message = "00", nil }, codes.Internal},
		"no outcome":           {func(a *parts) { a.outcome[0].Name = "other" }, codes.Internal},
		"no trailers":          {func(a *parts) { a.cut = true }, codes.Internal},
		"no message":           {func(a *parts) { a.message = nil }, codes.Internal},
		"empty message":        {func(a *parts) { a.message = make([]byte, prefix) }, codes.OK},
		"compressed":           {func(a *parts) { a.message[0] = 1 }, codes.Internal},
		"cut":                  {func(a *parts) { a.message = a.message[:len(a.message)-1] }, codes.Internal},
		"longer than it says":  {func(a *parts) { a.message = append(a.message, 0) }, codes.Unavailable},
		"cut after its length": {func(a *parts) { a.message = a.message[:prefix] }, codes.Internal},
		"no protobuf":          {func(a *parts) { a.message[prefix] = 0xff }, codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t)
				a := newResponse()
				c.change(&a)
				result := p.put()
				p.request()
				if _, err := p.conn.Write(encode(1, a)); err != nil && c.want != codes.Unavailable {
					t.Fatal(err)
				}
				if err := <-result; status.Code(err) != c.want || errors.Is(err, ErrUnsent) {
					t.Errorf("got %v, want %v", err, c.want)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				p := newPeerOf(t, (*Conn).RunInline)
				a := newResponse()
				c.change(&a)
				result := p.putInline(t.Context())
				p.request()
				if _, err := p.conn.Write(encode(1, a)); err != nil && c.want != codes.Unavailable {
					t.Fatal(err)
				}
				if err := <-result; status.Code(err) != c.want || errors.Is(err, ErrUnsent) {
					t.Errorf("inline: got %v, want %v", err, c.want)
				}
			})
		})
	}
}

// TestOnlyUnprocessedCallsAreUnsent checks that calls fail with ErrUnsent only if the peer reports that it did not
// process them.
func TestOnlyUnprocessedCallsAreUnsent(t *testing.T) {
	for name, c := range map[string]struct {
		send func(f *http2.Framer) error
		want [2]error // of calls 1 and 3
	}{
		"goaway after call 1":  {func(f *http2.Framer) error { return f.WriteGoAway(1, http2.ErrCodeNo, nil) }, [2]error{nil, ErrUnsent}},
		"goaway before call 1": {func(f *http2.Framer) error { return f.WriteGoAway(0, http2.ErrCodeNo, nil) }, [2]error{ErrUnsent, ErrUnsent}},
		"goaway after all":     {func(f *http2.Framer) error { return f.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil) }, [2]error{nil, nil}},
		"refused":              {func(f *http2.Framer) error { return f.WriteRSTStream(3, http2.ErrCodeRefusedStream) }, [2]error{nil, ErrUnsent}},
		"reset":                {func(f *http2.Framer) error { return f.WriteRSTStream(3, http2.ErrCodeProtocol) }, [2]error{nil, status.Error(codes.Internal, "")}},
		"canceled":             {func(f *http2.Framer) error { return f.WriteRSTStream(3, http2.ErrCodeCancel) }, [2]error{nil, status.Error(codes.Internal, "")}},
		"unknown call refused": {func(f *http2.Framer) error { return f.WriteRSTStream(5, http2.ErrCodeRefusedStream) }, [2]error{nil, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t)
				results := []<-chan error{p.put()}
				p.request()
				results = append(results, p.put())
				p.request()
				if err := c.send(p.framer); err != nil {
					t.Fatal(err)
				}
				drained := make(chan struct{})
				go func() { // a pipe has no buffer
					defer close(drained)
					io.Copy(io.Discard, p.conn)
				}()
				synctest.Wait()
				for i, want := range c.want {
					if want == nil {
						p.respond(uint32(2*i + 1))
					}
					err := <-results[i]
					if errors.Is(want, ErrUnsent) != errors.Is(err, ErrUnsent) || status.Code(err) != status.Code(want) {
						t.Errorf("call %d: got %v, want %v", i, err, want)
					}
				}
				p.conn.Close()
				<-drained
			})
		})
	}
}

// TestNoCallFollowsTheLastStream checks that calls fail with ErrUnsent after one has taken the last stream ID, even while
// that call is being written.
func TestNoCallFollowsTheLastStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		if _, err := p.framer.ReadFrame(); err != nil { // the acknowledgement of settings; nothing else is being written
			t.Fatal(err)
		}
		synctest.Wait()
		p.c.mu.Lock()
		p.c.next = math.MaxInt32
		p.c.mu.Unlock()
		last := p.put()
		synctest.Wait()
		next := p.put()
		synctest.Wait()
		select {
		case err := <-next:
			if !errors.Is(err, ErrUnsent) {
				t.Errorf("the next call: got error %v, want ErrUnsent", err)
			}
		default:
			t.Error("the next call waits for a response")
		}
		p.request()
		p.respond(math.MaxInt32)
		if err := <-last; err != nil {
			t.Errorf("the last call: %v", err)
		}
	})
}

// TestOpenFailsWithoutHTTP2 checks that Open fails and closes the connection if the peer sends nothing, or something else
// than an HTTP/2 preface.
func TestOpenFailsWithoutHTTP2(t *testing.T) {
	for _, sent := range []string{"HTTP/1.1 400 Bad Request\r\n\r\n", "", string(encode(1, newResponse()))} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			defer there.Close()
			go func() {
				go io.Copy(io.Discard, there)
				io.WriteString(there, sent)
			}()
			ctx, cancel := context.WithTimeout(t.Context(), Tick)
			defer cancel()
			if _, err := Open(ctx, here, "http", "server:1", "test"); err == nil {
				t.Errorf("Open succeeds after %q", sent)
			}
			if sent != "" && ctx.Err() != nil {
				t.Errorf("after %q, Open waits for more", sent)
			}
			if _, err := here.Read(nil); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("after %q, a read of the connection returns %v, want ErrClosedPipe", sent, err)
			}
		})
	}
}

// endingConn ends a context with each read.
type endingConn struct {
	net.Conn
	end context.CancelFunc
}

func (e endingConn) Read(p []byte) (int, error) {
	defer e.end()
	return e.Conn.Read(p)
}

// TestOpenEndsWithItsContext checks that Open does not return a connection if its context ends during the handshake.
func TestOpenEndsWithItsContext(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	go func() {
		go io.Copy(io.Discard, there)
		_ = http2.NewFramer(there, nil).WriteSettings()
	}()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := Open(ctx, endingConn{here, cancel}, "http", "server:1", "test"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestUnwrittenCallsAreUnsent breaks the connection while a call is being written and another one waits. Only the second
// must fail with ErrUnsent.
func TestUnwrittenCallsAreUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		p.acknowledged()
		written := p.putBytes(t.Context(), 1) // a pipe has no buffer
		waiting := p.putBytes(t.Context(), 1)
		p.conn.Close()
		if err := <-written; status.Code(err) != codes.Unavailable {
			t.Errorf("the call that is being written: got error %v, want Unavailable", err)
		}
		if err := <-waiting; !errors.Is(err, ErrUnsent) {
			t.Errorf("the call that waits: got error %v, want ErrUnsent", err)
		}
	})
}

// breaking is a connection that breaks after a number of bytes.
type breaking struct {
	net.Conn
	reads, writes int  // bytes until it breaks
	unlimited     bool // it never breaks

	mu            sync.Mutex
	read, written int // bytes so far
}

func (b *breaking) Read(p []byte) (int, error) {
	b.mu.Lock()
	left := b.reads - b.read
	b.mu.Unlock()
	if left <= 0 && !b.unlimited {
		b.Close()
		return 0, io.ErrUnexpectedEOF
	}
	if !b.unlimited {
		p = p[:min(len(p), left)]
	}
	n, err := b.Conn.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read += n
	return n, err
}

func (b *breaking) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if left := b.writes - b.written; !b.unlimited && len(p) > left {
		n, _ := b.Conn.Write(p[:left])
		b.written += n
		b.Close()
		return n, io.ErrClosedPipe
	}
	n, err := b.Conn.Write(p)
	b.written += n
	return n, err
}

// TestBrokenConnectionsMakeNoCallTwice breaks the connection after each number of bytes read or written. Calls that fail
// with ErrUnsent must not have been made, and those with a response must have been made once.
func TestBrokenConnectionsMakeNoCallTwice(t *testing.T) {
	whole := &breaking{unlimited: true}
	breakOne(t, whole)
	for n := range whole.written + 1 {
		breakOne(t, &breaking{writes: n, reads: 1 << 20})
	}
	for n := range whole.read + 1 {
		breakOne(t, &breaking{writes: 1 << 20, reads: n})
	}
}

func breakOne(t *testing.T, b *breaking) {
	t.Helper()
	var mu sync.Mutex
	var made []int64
	s := &server{serve: func(_ context.Context, in *etcdserverpb.PutRequest) (*etcdserverpb.PutResponse, error) {
		mu.Lock()
		defer mu.Unlock()
		made = append(made, in.Lease)
		return echo(in), nil
	}}
	g := grpc.NewServer(grpc.WaitForHandlers(true))
	etcdserverpb.RegisterKVServer(g, s)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- g.Serve(listener) }()
	b.Conn, err = net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	const callers = 3
	outcomes := make([]error, callers)
	c, err := Open(t.Context(), b, "http", "server:1", "test")
	if err == nil {
		c.tick = never
		ran := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { c.Run(ctx); close(ran) }()
		var group sync.WaitGroup
		for i := range callers {
			group.Go(func() {
				_, outcomes[i] = put(t.Context(), c, &etcdserverpb.PutRequest{Lease: int64(i), Key: []byte("key")})
			})
		}
		group.Wait()
		cancel()
		<-ran
	}
	g.Stop()
	<-served
	if err != nil {
		if len(made) > 0 {
			t.Errorf("calls %v were made, although Open failed", made)
		}
		return
	}
	for i, err := range outcomes {
		times := len(slices.DeleteFunc(slices.Clone(made), func(id int64) bool { return id != int64(i) }))
		if times > 1 || times == 1 && errors.Is(err, ErrUnsent) || times == 0 && err == nil || b.unlimited && err != nil {
			t.Errorf("broken after reading %d or writing %d: call %d was made %d times, and returned %v", b.reads, b.writes, i, times, err)
		}
		if err != nil && !errors.Is(err, ErrUnsent) && status.Code(err) != codes.Unavailable {
			t.Errorf("call %d: got error %v, want Unavailable or ErrUnsent", i, err)
		}
	}
}

// FuzzPeer checks that calls end for any bytes of the peer, with success, a gRPC error or ErrUnsent.
func FuzzPeer(f *testing.F) {
	f.Add(encode(1, newResponse()), false)
	f.Add(encode(1, newResponse()), true)
	f.Add(encode(3, newResponse()), false)
	f.Add(append(encode(3, newResponse()), encode(1, newResponse())...), false)
	var frames bytes.Buffer
	framer := http2.NewFramer(&frames, nil)
	framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3})
	framer.WritePing(false, [8]byte{1})
	framer.WriteWindowUpdate(0, 1<<31-1)
	framer.WriteRSTStream(1, http2.ErrCodeRefusedStream)
	framer.WriteGoAway(1, http2.ErrCodeNo, nil)
	f.Add(frames.Bytes(), false)
	f.Add(frames.Bytes(), true)
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), true)
	f.Fuzz(func(t *testing.T, sent []byte, inline bool) {
		here, there := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			drained := make(chan struct{})
			go func() { io.Copy(io.Discard, there); close(drained) }()
			if http2.NewFramer(there, nil).WriteSettings() == nil {
				there.Write(sent)
			}
			there.Close()
			<-drained
		}()
		c, err := Open(t.Context(), here, "http", "server:1", "test")
		if err != nil {
			t.Fatal(err)
		}
		ran := make(chan struct{})
		run := c.Run
		if inline {
			run = c.RunInline
		}
		go func() { run(t.Context()); close(ran) }()
		invoke := c.Invoke
		if inline {
			invoke = c.InvokeInline
		}
		out := new(etcdserverpb.PutResponse)
		err = invoke(t.Context(), etcdserverpb.KV_Put_FullMethodName, &etcdserverpb.PutRequest{}, out)
		c.Retire()
		if err != nil && !errors.Is(err, ErrUnsent) {
			if _, ok := status.FromError(err); !ok {
				t.Error(fmt.Errorf("no gRPC error: %w", err))
			}
		}
		<-ran
		<-done
	})
}
