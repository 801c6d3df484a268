package exchange

import (
	"context"
	"crypto/tls"
	"iter"
	"net"
	"net/http"
	"net/textproto"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/larder-io/larder/httpapi/request"
)

// Carrier is what a request came by and its answer leaves by: the part of a door that
// belongs to one request. HTTP/1.1 has one for each connection, one request after the other;
// HTTP/2 one for each stream.
//
// Bytes that it returns end with the exchange and are not changed. Only the goroutine that
// serves the exchange calls it.
type Carrier interface {
	// Method and Target are those of the request line, Host is what the request is sent to.
	Method() []byte
	Target() []byte
	Host() []byte
	// Peek returns the value of a field of the header, Lines gives out all of them, in the
	// order in which they were sent.
	Peek(name string) []byte
	Lines() iter.Seq2[[]byte, []byte]
	// Inspect looks at the whole header once.
	Inspect() Facts

	// Fields is room for the header of the response. It is empty.
	Fields() []Field
	// Chunks reports whether the client takes a body whose size is not announced.
	Chunks() bool

	// BodyLength is that of the request's body, -1 if it is not announced. ReadBody reads
	// the body, until the deadline.
	BodyLength() int64
	ReadBody(deadline time.Time) ([]byte, error)

	RemoteAddr() net.Addr
	// TLS is nil for requests of this process, which are Internal.
	TLS() *tls.ConnectionState
	Internal() bool
	// Slot is where the handler keeps what it remembers of the sender from one request to
	// the next. Requests that are served at the same time have different ones; nil if there
	// is none.
	Slot() *any

	// Major is the version of HTTP: 1 or 2. Requests of 2 share their connection with others.
	Major() int
	// Until returns a context that ends with ctx or, where that is seen at once, when the
	// client leaves. It ends with the exchange, too, if it is not ctx itself.
	Until(ctx context.Context) context.Context

	// Steal leaves the response to one who writes its body piece by piece and reads nothing
	// more, and may do so at once. It has code and header, which ends with the exchange and
	// to which the door adds what frames the body, and Date. What was read ahead is lost, which Response.Taken does not
	// lose.
	Steal(code int, header []Field) Stolen
}

// Stolen is where the body of a response goes that is written by hand.
type Stolen struct {
	// Conn takes the body. Its owner bounds writes in time, and closes it.
	Conn net.Conn
	// Head is to be written before the body. It is nil if the door has sent it.
	Head []byte
	// Chunked says that the body is to be framed in chunks, of which the last is its end.
	Chunked bool
	// End tells the client that the body is whole. It is nil where the last chunk or the end
	// of the connection says so.
	End func() error
	// Left has a function called when the client leaves, at once if it has, which must not
	// block. It is nil where that must be looked for.
	Left func(func())
}

// Takeover is what somebody gets who takes a response over that a net/http handler writes,
// after the exchange has ended.
type Takeover struct {
	// Conn is the connection, on which everything about the response is still to be said,
	// or what takes its body, if Begin is not nil.
	Conn net.Conn
	Body TakenBody // nil if there is none
	// Begin sends the head of the response, End says that its body is whole, and Left is
	// that of Stolen. They are nil for HTTP/1.1.
	// What Begin sends with a code below 200 comes before the head; what is sent after the
	// body End is given.
	Begin func(code int, header http.Header) error
	End   func(trailer http.Header) error
	Left  func(func())
}

// Facts is what one look at a request's header finds.
type Facts struct {
	// Code and Refusal are the answer to a request that must be refused, though it could
	// be read: two readers could read it in two ways. Code is 0 if it need not be.
	Code    int
	Refusal string
	// Impersonates says that the request asks to act as somebody else.
	Impersonates bool
	// Foreign says that it may have credentials beside the Authorization header.
	Foreign bool
}

// Exchange is one request and its answer. A door makes neither: it hands a Carrier to the
// server, which returns the Exchange, and writes what it finds in the Response.
//
// It belongs to the goroutine that serves it and ends with it. What is handed on is taken
// out of it, by TakeTrail and TakePlace, or copied.
type Exchange struct {
	request.Request // what is asked, once it is parsed

	Carrier  Carrier
	Received time.Time
	Deadline time.Time // zero for long-running requests
	Hurried  bool      // the client asked for an earlier deadline than the server's
	AuditID  string
	User     user.Info // who asks; nil before that is known

	Trail     *Trail // nil records nothing
	Place     Place
	Deadlines *Deadlines

	base  context.Context // nil before somebody asks for it
	usual context.Context // nil before somebody asks for it: has the server's deadline

	Response // what is answered
}

// Init makes x the exchange that c carries.
func (x *Exchange) Init(c Carrier, received time.Time, deadlines *Deadlines) {
	x.Carrier, x.Received, x.Deadlines = c, received, deadlines
	x.Header = c.Fields()
}

// Peek returns a field of the request's header without copying it. The bytes end with the
// exchange.
func (x *Exchange) Peek(name string) []byte { return x.Carrier.Peek(name) }

// CommonHeaders sets what every response carries.
func (x *Exchange) CommonHeaders() {
	x.Set("Cache-Control", "no-cache, private")
	if x.AuditID != "" {
		x.Set("Audit-Id", x.AuditID)
	}
}

// Reset forgets what was set of the response.
func (x *Exchange) Reset() {
	x.Close()
	// Who has the connection keeps it.
	x.Response = Response{Header: x.Header[:0], Cut: x.Cut, Taken: x.Taken, Stolen: x.Stolen}
	x.CommonHeaders()
}

// Close ends what the response would have been written from, the record of the request, and
// that it counts as one that is being served.
func (x *Exchange) Close() {
	x.closeBody()
	x.TakeTrail().End()
	x.Place.Release()
}

// Steal leaves the response to the caller at once. See [Carrier.Steal].
func (x *Exchange) Steal(code int, header []Field) Stolen {
	x.Stolen = true
	if x.Leaves() {
		header = append(header, Field{Name: "Connection", Value: "close"})
	}
	return x.Carrier.Steal(code, header)
}

// TakeTrail hands the trail to who serves the request from here on.
func (x *Exchange) TakeTrail() *Trail {
	t := x.Trail
	x.Trail = nil
	return t
}

// TakePlace hands the place to who serves the request from here on.
func (x *Exchange) TakePlace() Place {
	p := x.Place
	x.Place = Place{}
	return p
}

// CloseTrail records the answer, unless it is long: then it is recorded when it has been
// sent.
func (x *Exchange) CloseTrail() {
	if x.Trail == nil {
		return
	}
	x.Trail.Answer(x.StatusCode())
	if x.small() {
		x.TakeTrail().End()
	}
}

// Base ends when the server does, or the client leaves if that is seen.
func (x *Exchange) Base() context.Context {
	if x.base == nil {
		x.base = x.Carrier.Until(x.Deadlines.base)
	}
	return x.base
}

// Carry has what Base returns from now on know what with adds to it.
func (x *Exchange) Carry(with func(context.Context) context.Context) { x.base = with(x.Base()) }

// atDeadline is Base with the server's deadline.
func (x *Exchange) atDeadline() context.Context {
	if x.usual == nil {
		x.usual = x.Carrier.Until(x.Deadlines.At(x.Received))
	}
	return x.usual
}

// Prepared is bounded for what comes before a request is served: for one that is
// long-running, too, which has as long for that as others have for all.
func (x *Exchange) Prepared() (context.Context, context.CancelFunc) {
	if x.Deadline.IsZero() {
		return x.atDeadline(), func() {}
	}
	return x.Bounded()
}

// Bounded returns a context that ends at the request's deadline, and what must be
// called when it is not needed any more.
func (x *Exchange) Bounded() (context.Context, context.CancelFunc) {
	switch {
	case x.Deadline.IsZero():
		return x.Base(), func() {}
	case x.Hurried:
		return context.WithDeadline(x.Base(), x.Deadline)
	default:
		return x.atDeadline(), func() {}
	}
}

// CopyHeaders copies the fields of the request's header that keep lets pass, under their
// canonical names.
func (x *Exchange) CopyHeaders(keep func(key string) bool) http.Header {
	header := make(http.Header)
	for name, value := range x.Carrier.Lines() {
		if key := textproto.CanonicalMIMEHeaderKey(string(name)); keep(key) {
			header[key] = append(header[key], string(value))
		}
	}
	return header
}
