// Package baseline serves recorded responses as cheaply as Go can: fasthttp over TLS that sends
// bytes from memory. Its cost is the lower bound for servers that send the same bytes over the same
// protocol.
//
// A [Tape] holds the responses. The server holds watches open unless the tape has a response. For each PATCH
// it sends the recorded event, with the mark of the patch, to all open watches, in one TLS write each. It serves
// any other request with a few bytes that let a workload continue.
package baseline

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// Tape holds the recorded responses.
type Tape struct {
	Responses map[string][]byte
	// Event is a framed event of a watch, as bench.Target.CaptureChange returns it.
	Event []byte
}

// Key returns the key of the response to a request.
func Key(path, accept, encoding string) string { return path + "\n" + accept + "\n" + encoding }

// Save writes the tape to a file.
func (t *Tape) Save(file string) error {
	data, err := json.Marshal(t)
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("baseline: %w", err)
	}
	return nil
}

// Load reads a tape that Save has written.
func Load(file string) (t Tape, err error) {
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &t)
	}
	if err != nil {
		return t, fmt.Errorf("baseline: tape: %w", err)
	}
	return t, nil
}

// Server serves a Tape.
type Server struct {
	tape Tape

	mu    sync.Mutex
	event []byte                // the tape's event as an HTTP chunk; each change updates its mark
	held  map[net.Conn]struct{} // open watches
}

// New returns a server. It retains the tape's bytes.
func New(tape Tape) *Server {
	event := fmt.Appendf(nil, "%x\r\n", len(tape.Event))
	event = append(append(event, tape.Event...), "\r\n"...)
	return &Server{tape: tape, event: event, held: make(map[net.Conn]struct{})}
}

// Run serves a listener until ctx ends.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	certificate, err := testservers.SelfSigned("limit")
	if err != nil {
		return err
	}
	server := &fasthttp.Server{
		Handler: s.handle, NoDefaultServerHeader: true, NoDefaultDate: true, ReadBufferSize: 8 << 10, WriteBufferSize: 16 << 10,
		TCPKeepalive: true, Logger: log.New(io.Discard, "", 0), // fasthttp logs connections that clients close early
	}
	secured := tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}, DynamicRecordSizingDisabled: true})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(secured) }()
	select {
	case err := <-ended:
		return fmt.Errorf("baseline: %w", err)
	case <-ctx.Done():
	}
	s.mu.Lock()
	for conn := range s.held {
		conn.Close()
	}
	s.mu.Unlock()
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(server.ShutdownWithContext(patience), <-ended)
}

func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	if ctx.IsPatch() {
		s.publish(ctx)
		return
	}
	header := &ctx.Request.Header
	key := Key(string(ctx.RequestURI()), string(header.Peek("Accept")), string(header.Peek("Accept-Encoding")))
	if body, ok := s.tape.Responses[key]; ok {
		ctx.Response.Header.SetContentTypeBytes(header.Peek("Accept"))
		ctx.Response.SetBodyRaw(body)
		return
	}
	if string(ctx.QueryArgs().Peek("watch")) == "true" {
		ctx.HijackSetNoResponse(true)
		ctx.Hijack(s.hold)
		return
	}
	ctx.SetContentType(bench.JSON)
	ctx.SetBodyString(`{"metadata":{"resourceVersion":"1"},"gitVersion":"limit"}`)
}

// hold keeps a watch open until its client disconnects.
func (s *Server) hold(conn net.Conn) {
	if err := s.accept(conn); err != nil {
		return
	}
	defer func() {
		s.mu.Lock()
		delete(s.held, conn)
		s.mu.Unlock()
	}()
	var nothing [1]byte
	for {
		if _, err := conn.Read(nothing[:]); err != nil {
			return
		}
	}
}

// accept serves a request that opens a watch and registers the watch for all later changes. The lock covers both,
// because the client may make a change as soon as it has the response.
func (s *Server) accept(conn net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"); err != nil {
		return err
	}
	s.held[conn] = struct{}{}
	return nil
}

func (s *Server) publish(ctx *fasthttp.RequestCtx) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !bench.CopyMark(s.event, ctx.PostBody()) {
		ctx.Error("no mark in "+strconv.Quote(string(ctx.PostBody())), fasthttp.StatusBadRequest)
		return
	}
	conns := make(chan net.Conn, len(s.held))
	for conn := range s.held {
		conns <- conn
	}
	close(conns)
	var writers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		writers.Go(func() {
			for conn := range conns {
				// hold notices clients that disconnect.
				_ = conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
				_, _ = conn.Write(s.event)
			}
		})
	}
	writers.Wait()
	ctx.SetBodyString("{}")
}
