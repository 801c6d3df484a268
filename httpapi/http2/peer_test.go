package http2

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/larder-io/larder/httpapi/exchange"
)

// handler responds to the request of a Carrier.
type handler func(c exchange.Carrier, received time.Time) *exchange.Exchange

// peer is a client that sends arbitrary frames. It records the frames that it receives, in order.
type peer struct {
	t      *testing.T
	conn   net.Conn
	framer *http2.Framer
	block  bytes.Buffer
	header *hpack.Encoder
	server *Conn
	served chan struct{} // closed when the server has ended the connection

	mu     sync.Mutex
	frames []receivedFrame // guarded by mu
	more   chan struct{}
}

// receivedFrame is a frame that the peer has received.
type receivedFrame struct {
	kind   http2.FrameType
	id     uint32
	end    bool
	code   http2.ErrCode
	fields map[string]string
	data   string
	more   int64 // by which a window grows
	over   bool  // the connection has ended
}

// newPeer connects a client to a server with the handler h. It must run in a synctest bubble.
func newPeer(t *testing.T, config Config, h handler, settings ...http2.Setting) *peer {
	t.Helper()
	config.Handler = h
	return newPeerOf(t, newServer(config), settings...)
}

func newServer(config Config) *Server {
	config.HeaderTimeout, config.IdleTimeout, config.WriteTimeout = 32*time.Second, 90*time.Second, time.Minute
	config.MaxHeaderBytes, config.MaxBodyBytes = 1<<20, 1<<20
	return New(config)
}

// newPeerOf connects a client to s.
func newPeerOf(t *testing.T, s *Server, settings ...http2.Setting) *peer {
	t.Helper()
	client, server := net.Pipe()
	p := &peer{t: t, conn: client, framer: http2.NewFramer(client, client), server: s.NewConn(server), served: make(chan struct{}), more: make(chan struct{}, 1)}
	p.header = hpack.NewEncoder(&p.block)
	go func() {
		defer close(p.served)
		p.server.Serve()
	}()
	go p.listen()
	if _, err := client.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	p.must(p.framer.WriteSettings(settings...))
	t.Cleanup(func() {
		client.Close()
		<-p.served
	})
	return p
}

func (p *peer) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// listen records received frames.
func (p *peer) listen() {
	fields := map[string]string(nil)
	decoder := hpack.NewDecoder(4096, func(f hpack.HeaderField) { fields[f.Name] = f.Value })
	for {
		frame, err := p.framer.ReadFrame()
		if err != nil {
			p.record(receivedFrame{over: true})
			return
		}
		h := receivedFrame{kind: frame.Header().Type, id: frame.Header().StreamID}
		switch f := frame.(type) {
		case *http2.HeadersFrame:
			fields = make(map[string]string)
			if _, err := decoder.Write(f.HeaderBlockFragment()); err != nil {
				p.t.Error(err)
			}
			h.fields, h.end = fields, f.StreamEnded()
		case *http2.DataFrame:
			h.data, h.end = string(f.Data()), f.StreamEnded()
		case *http2.RSTStreamFrame:
			h.code = f.ErrCode
		case *http2.WindowUpdateFrame:
			h.more = int64(f.Increment)
		case *http2.GoAwayFrame:
			h.code, h.data = f.ErrCode, fmt.Sprint(f.LastStreamID)
		case *http2.PingFrame:
			h.end, h.data = f.IsAck(), string(f.Data[:])
		}
		p.record(h)
	}
}

func (p *peer) record(h receivedFrame) {
	p.mu.Lock()
	p.frames = append(p.frames, h)
	p.mu.Unlock()
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// await returns the first wanted frame among the frames that have arrived and those that arrive within an hour.
func (p *peer) await(what string, want func(receivedFrame) bool) receivedFrame {
	p.t.Helper()
	late := time.After(time.Hour)
	for {
		p.mu.Lock()
		for _, h := range p.frames {
			if want(h) {
				p.mu.Unlock()
				return h
			}
		}
		p.mu.Unlock()
		select {
		case <-p.more:
		case <-late:
			p.t.Fatalf("%s was not received: %+v", what, p.frames)
		}
	}
}

// ended waits for the end of a stream and returns its header, body, and how it was reset.
func (p *peer) ended(id uint32) (fields map[string]string, body string, code http2.ErrCode) {
	p.t.Helper()
	p.await(fmt.Sprintf("the end of stream %d", id), func(h receivedFrame) bool {
		return h.over || h.id == id && (h.end || h.kind == http2.FrameRSTStream)
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.frames {
		switch {
		case h.id != id:
		case h.kind == http2.FrameHeaders && fields == nil:
			fields = h.fields
		case h.kind == http2.FrameData:
			body += h.data
		case h.kind == http2.FrameRSTStream:
			code = h.code
		}
	}
	return fields, body, code
}

// awaitGoAway waits for a GOAWAY.
func (p *peer) awaitGoAway(code http2.ErrCode) receivedFrame {
	p.t.Helper()
	return p.await("GOAWAY "+code.String(), func(h receivedFrame) bool { return h.kind == http2.FrameGoAway && h.code == code })
}

// encode returns a header block.
func (p *peer) encode(fields ...string) []byte {
	p.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		p.must(p.header.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	return bytes.Clone(p.block.Bytes())
}

// request sends a header. Callers may ignore its error, because a closed connection also shows where they wait for the
// response.
func (p *peer) request(id uint32, end bool, fields ...string) error {
	block, most := p.encode(fields...), initialFrame
	first := block[:min(len(block), most)]
	err := p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: end, EndHeaders: len(first) == len(block)})
	for block = block[len(first):]; len(block) > 0 && err == nil; block = block[min(len(block), most):] {
		err = p.framer.WriteContinuation(id, len(block) <= most, block[:min(len(block), most)])
	}
	return err
}

// get requests a path.
func (p *peer) get(id uint32, path string, more ...string) error {
	return p.request(id, true, append([]string{":method", "GET", ":scheme", "https", ":authority", "h", ":path", path}, more...)...)
}

// echo responds to every request with its target.
func echo(c exchange.Carrier, received time.Time) *exchange.Exchange {
	x := new(exchange.Exchange)
	x.Init(c, received, nil)
	x.Send(http.StatusOK, "text/plain", bytes.Clone(c.Target()))
	return x
}

// pattern is a body with the number of bytes.
type pattern int

func (p pattern) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for piece := make([]byte, 5000); int(total) < int(p); {
		m, err := w.Write(piece[:min(len(piece), int(p)-int(total))])
		if total += int64(m); err != nil {
			return total, err
		}
	}
	return total, nil
}

func (p pattern) Close() error { return nil }
