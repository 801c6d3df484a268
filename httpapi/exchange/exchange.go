package exchange

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"iter"
	"net"
	"net/http"
	"net/textproto"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/larder-io/larder/httpapi/costs"
	"github.com/larder-io/larder/httpapi/request"
)

// Carrier is the HTTP server's side of one request: http1 has one for each connection, http2 one for each stream.
//
// Bytes that it returns do not change. They are valid until the handler returns, or, if the response is
// streamed or hijacked, until the exchange ends. Only the goroutine that serves the exchange calls it.
type Carrier interface {
	// Method and Target come from the request line; Host names the server.
	Method() []byte
	Target() []byte
	Host() []byte
	// Peek returns the value of a header field. Lines yields all fields in the order of the client.
	Peek(name string) []byte
	Lines() iter.Seq2[[]byte, []byte]
	// Inspect reads the whole header once.
	Inspect() Facts

	// Fields returns an empty slice with capacity for the header of the response.
	Fields() []Field
	// Chunks reports whether the client accepts a body without an announced size.
	Chunks() bool

	// BodyLength is -1 if the length is unknown. ReadBody reads the body, until the deadline. Its memory is not reused.
	BodyLength() int64
	ReadBody(deadline time.Time) ([]byte, error)

	RemoteAddr() net.Addr
	// TLS is nil for requests of this process, which are Internal.
	TLS() *tls.ConnectionState
	Internal() bool
	// Slot stores the handler's data about the client, which all requests of a connection share.
	Slot() *atomic.Value

	// Major is the version of HTTP: 1 or 2.
	Major() int
	// OnEnd registers a function that is called when the client leaves, over HTTP/1.1 up to a second later, or when
	// the exchange ends.
	OnEnd(f func())

	// StartStream begins a response whose body the caller writes piece by piece. The server adds Date and the fields
	// that frame the body to header, which is valid until the exchange ends.
	StartStream(code int, header []Field) BodyStream
}

// BodyStream is the destination to which the caller of [Carrier.StartStream] writes the body of the response.
type BodyStream struct {
	// Conn takes the body. Its owner sets deadlines for writes, and closes it or calls Next.
	Conn net.Conn
	// Head must be written before the body. It is nil if the server has sent it.
	Head []byte
	// Chunked means that the body must be framed in chunks, with the last chunk at its end.
	Chunked bool
	// End ends the body; nil if the last chunk or the end of the connection does.
	End func() error
	// Left registers a function that must not block. It is called when the client leaves, at once
	// if it has left. If Left is nil, the owner must probe the connection.
	Left func(func())
	// Next serves the next request on Conn, after the last chunk was written. The request begins with
	// early, which was read from Conn. Next is nil if the connection ends with the response.
	Next func(early []byte)
}

// Hijacked is the argument of Response.Hijack: a connection for a net/http handler, after the
// exchange has ended.
type Hijacked struct {
	// No part of the response was written to Conn yet. If Begin is not nil, Conn takes only the body.
	Conn net.Conn
	// Ahead reads the bytes that were read ahead from Conn, and then Conn. It is nil for HTTP/2.
	Ahead io.Reader
	Body  HijackedBody // nil if there is none
	// Begin sends the head of the response, or of an informational one if code is below 200. End sends the trailer
	// and completes the body. Left is as in BodyStream. They are nil for HTTP/1.1.
	Begin func(code int, header http.Header) error
	End   func(trailer http.Header) error
	Left  func(func())
}

// Facts has the results of [Carrier.Inspect].
type Facts struct {
	// Code and Refusal are the response to a request that two parsers could understand differently. Code is 0 for all
	// other requests.
	Code    int
	Refusal string
	// Impersonates means that the request impersonates another user.
	Impersonates bool
	// OtherCredentials means that the request may have credentials outside the Authorization header.
	OtherCredentials bool
}

// Reject makes the server respond with 400.
func (f *Facts) Reject(why string) {
	f.Code, f.Refusal = http.StatusBadRequest, "400 Bad Request: "+why
}

// RejectRepeated rejects the request if the field name occurs twice. *seen records the first occurrence.
func (f *Facts) RejectRepeated(seen *bool, name string) {
	if *seen {
		f.Reject("repeated " + name + " header")
	}
	*seen = true
}

// Exchange is one request and its response. http1 and http2 pass a Carrier to the handler, which returns the Exchange,
// and write its Response.
//
// It belongs to the goroutine that serves it and ends with it. TakeAudit and TakeSeat move parts of
// it to code that outlives it.
type Exchange struct {
	request.Request // empty before it is parsed

	Carrier  Carrier
	Received time.Time
	Server   context.Context // ends with the server
	Deadline time.Time       // zero for long-running requests
	// PrepareBy limits the work before the request is served, such as authentication. It is Deadline unless the
	// request is long-running.
	PrepareBy time.Time
	AuditID   string
	HSTS      string    // the Strict-Transport-Security field of the response; "" for none
	User      user.Info // nil before the request is authenticated

	// Account is charged for the request; nil before the client is known. Waited is the known waiting time since
	// Received.
	Account *costs.Account
	Waited  time.Duration

	Audit   *AuditRecord // nil records nothing
	Seat    Seat
	InQueue time.Duration // time in a queue for Seat

	LogValues []any     // of the serving chain, for the line of the log; nil if requests are not logged
	Seated    time.Time // when the request got its seat; zero if requests are not logged
	Info      string    // the end of the line; "" if requests are not logged
	Logged    bool      // the line is or will be written

	encoding time.Time // when encoding the response began; zero if that is not recorded
	ready    time.Time // when sending it began; zero if that is not recorded

	base   context.Context // nil before the first call of Base
	*spans                 // nil: x is not traced

	Response
	object objectBody // the body, if it is one object
}

// Init makes x the exchange that c carries. Its contexts end with server.
func (x *Exchange) Init(c Carrier, received time.Time, server context.Context) {
	x.Carrier, x.Received, x.Server = c, received, server
	x.Header = c.Fields()
}

// Charge charges the account for the request: for the bytes of the response, and for its time without the waits for
// the client. The HTTP server calls it once, when the response has been written or taken over. Charge also ends
// the spans of x, and completes the audit record.
func (x *Exchange) Charge(bytes int64, waited time.Duration) {
	x.endResponse(bytes, waited)
	if x.Account == nil {
		return
	}
	busy := max(0, time.Since(x.Received)-x.Waited-waited)
	x.Account.Add(costs.Usage{costs.CPU: int64(busy), costs.Bytes: bytes, costs.Requests: 1})
}

// localDecision is the longest time of an authorization without a webhook.
const localDecision = time.Millisecond

// Decided records how long authorization took. Time beyond localDecision counts as a wait for a webhook.
func (x *Exchange) Decided(took time.Duration) { x.Waited += max(0, took-localDecision) }

// Peek returns a field of the request's header, without a copy. The bytes end with the exchange.
func (x *Exchange) Peek(name string) []byte { return x.Carrier.Peek(name) }

// Detached returns a copy of the request, its user and its spans, for code that may outlive x. It has no Carrier.
func (x *Exchange) Detached() *Exchange {
	d := &Exchange{Request: x.Request, User: x.User}
	if x.spans != nil {
		d.spans = &spans{open: slices.Clone(x.spans.open)}
	}
	return d
}

// CommonHeaders sets the header fields of every response.
func (x *Exchange) CommonHeaders() {
	x.Set("Cache-Control", "no-cache, private")
	if x.AuditID != "" {
		x.Set("Audit-Id", x.AuditID)
	}
	if x.HSTS != "" {
		x.Set("Strict-Transport-Security", x.HSTS)
	}
}

// Reset empties the response.
func (x *Exchange) Reset() {
	x.Close()
	x.Response = Response{Header: x.Header[:0], Abort: x.Abort, Hijack: x.Hijack, Streamed: x.Streamed}
	x.CommonHeaders()
}

// Close closes the body of the response, ends the audit record of the request and releases its seat.
func (x *Exchange) Close() {
	x.closeBody()
	x.TakeAudit().End()
	x.Seat.Release()
}

// StartStream begins a streamed response. See [Carrier.StartStream].
func (x *Exchange) StartStream(code int, header []Field) BodyStream {
	x.Streamed = true
	return x.Carrier.StartStream(code, header)
}

// TakeAudit moves the audit record to the caller, which then serves the request.
func (x *Exchange) TakeAudit() *AuditRecord {
	record := x.Audit
	x.Audit = nil
	return record
}

// TakeSeat moves the seat to the caller, which then serves the request.
func (x *Exchange) TakeSeat() Seat {
	seat := x.Seat
	x.Seat = Seat{}
	return seat
}

// EndAudit records the status of the response. It ends the record of a small response before the response is sent, so
// no client gets a small response whose record is not stored. Upstream encodes and writes a response in one step, so
// the record of a slow request has one latency for both. The record of a large response ends when it has been sent,
// unless it is in memory and the request was fast: such a record has no latencies.
func (x *Exchange) EndAudit() {
	if x.Audit == nil {
		return
	}
	x.Audit.RecordStatus(x.StatusCode())
	if !x.bodyIsSmall() || len(x.Bytes) > RecordSize && x.Audit.age() > slowRequest {
		return
	}
	if !x.encoding.IsZero() {
		x.Audit.responded(x.encoding, time.Since(x.encoding))
	}
	x.TakeAudit().End()
}

// ReleaseSeat releases the seat if only a small response is left to send. So the seat is free when the client has read
// the response and sends the next request, as in upstream. For a larger response the seat is held until it has been
// sent.
func (x *Exchange) ReleaseSeat() {
	if !x.Large() {
		x.Seat.Release()
	}
}

// Base returns the context of the request. It ends at Deadline, with the server, when the client leaves, and with the
// exchange.
func (x *Exchange) Base() context.Context {
	if x.base == nil {
		var cancel context.CancelFunc
		if x.Deadline.IsZero() {
			x.base, cancel = context.WithCancel(x.Server)
		} else {
			x.base, cancel = context.WithDeadline(x.Server, x.Deadline)
		}
		x.Carrier.OnEnd(cancel)
	}
	return x.base
}

// ReplaceBase replaces the context of Base by with(context).
func (x *Exchange) ReplaceBase(with func(context.Context) context.Context) {
	x.base = with(x.Base())
}

// PrepareContext returns a context for the work before a request is served, and a function that releases it. It ends at
// PrepareBy.
func (x *Exchange) PrepareContext() (context.Context, context.CancelFunc) {
	if !x.Deadline.IsZero() {
		return x.Base(), func() {}
	}
	return context.WithDeadline(x.Base(), x.PrepareBy)
}

// CopyHeaders copies the header fields for which keep returns true, under their canonical names.
func (x *Exchange) CopyHeaders(keep func(key string) bool) http.Header {
	header := make(http.Header)
	for name, value := range x.Carrier.Lines() {
		if key := textproto.CanonicalMIMEHeaderKey(string(name)); keep(key) {
			header[key] = append(header[key], string(value))
		}
	}
	if cookies := header["Cookie"]; len(cookies) > 1 && x.Carrier.Major() == 2 { // RFC 9113, 8.2.3
		header["Cookie"] = []string{strings.Join(cookies, "; ")}
	}
	return header
}

// IsAbort reports whether p, the value of a panic, means to close the connection without a response.
func IsAbort(p any) bool {
	err, ok := p.(error)
	return ok && errors.Is(err, http.ErrAbortHandler)
}

// Stack returns the caller's stack, for the log.
func Stack() string { return string(debug.Stack()) }
