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

	"github.com/larder-io/larder/httpapi/costs"
	"github.com/larder-io/larder/httpapi/request"
)

// Carrier is the part of a door that belongs to one request: it has read the request and
// writes the answer. HTTP/1.1 has one for each connection, for one request after the other;
// HTTP/2 has one for each stream.
//
// Bytes that it returns are valid until the handler returns, or until the exchange ends if the
// response is taken over, and are not changed. Only the goroutine that serves the exchange calls
// it.
type Carrier interface {
	// Method and Target are those of the request line, Host is what the request is sent to.
	Method() []byte
	Target() []byte
	Host() []byte
	// Peek returns the value of a field of the header. Lines yields all fields, in the order
	// in which the client sent them.
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
	// Until returns a context that ends with ctx or, if the door sees that at once, when the
	// client leaves. It ends with the exchange, too, if it is not ctx itself.
	Until(ctx context.Context) context.Context

	// Steal leaves the response to the caller, who writes its body piece by piece, reads
	// nothing more, and may begin at once. The response has code and header, to which the door
	// adds Date and the fields that frame the body; header is valid until the exchange ends.
	// Bytes that were read ahead are lost. Response.Taken does not lose them.
	Steal(code int, header []Field) Stolen
}

// Stolen is what the caller of [Carrier.Steal] writes the body of the response to.
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
	// Left has a function called when the client leaves, at once if it has left already. The
	// function must not block. Left is nil if the owner must look for that itself.
	Left func(func())
}

// Takeover is what Response.Taken gets when it takes a response over, after the exchange has
// ended, for a net/http handler to write.
type Takeover struct {
	// Conn is the connection, on which nothing of the response has been written. If Begin is
	// not nil, Conn takes the body alone.
	Conn net.Conn
	Body TakenBody // nil if there is none
	// Begin sends the head of the response, or an informational one before it if code is
	// below 200. End sends the trailer and says that the body is whole. Left is that of
	// Stolen. They are nil for HTTP/1.1.
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
	// Impersonates says that the request asks to act as another user.
	Impersonates bool
	// Foreign says that the request may have credentials beside the Authorization header.
	Foreign bool
}

// Exchange is one request and its answer. A door makes neither: it hands a Carrier to the
// server, which returns the Exchange, and writes what it finds in the Response.
//
// It belongs to the goroutine that serves it and ends with it. To hand parts of it on, that
// goroutine takes them out of it, by TakeTrail and TakePlace, or copies them.
type Exchange struct {
	request.Request // empty before it is parsed

	Carrier  Carrier
	Received time.Time
	Deadline time.Time // zero for long-running requests
	Hurried  bool      // the client asked for an earlier deadline than the server's
	AuditID  string
	User     user.Info // nil before the request is authenticated

	// Account is charged for what the request costs; nil before it is known who asks. Waited
	// is how much of the time since Received was spent waiting, as far as is known.
	Account *costs.Account
	Waited  time.Duration

	Trail     *Trail // nil records nothing
	Place     Place
	InQueue   time.Duration // that was spent in a queue for Place
	Deadlines *Deadlines

	Said   []any     // by the serving chain, for the line of the log; nil unless there is to be one
	Seated time.Time // when the request got its place; zero unless there is to be a line
	Info   string    // what the line ends with; "" unless there is to be one
	Told   bool      // the line is written, or will be by who serves the request

	encoding time.Time // when encoding the answer began; zero if that is not recorded
	ready    time.Time // when sending it began; zero if that is not recorded

	base    context.Context // nil before the first call of Base
	carries bool            // base has values of x alone
	usual   context.Context // has the server's deadline; nil before the first call of atDeadline
	*spans                  // nil: x is not traced

	Response            // the answer
	object   objectBody // is its body, if it is one object
}

// Init makes x the exchange that c carries.
func (x *Exchange) Init(c Carrier, received time.Time, deadlines *Deadlines) {
	x.Carrier, x.Received, x.Deadlines = c, received, deadlines
	x.Header = c.Fields()
}

// Charge charges the account for the request, whose answer had so many bytes and had to wait
// so long for the client. The door calls it once, when the answer has been written, or when
// somebody else writes it. It ends the spans of x, and tells the trail how long that took.
func (x *Exchange) Charge(bytes int64, waited time.Duration) {
	x.answered(bytes, waited)
	if x.Account == nil {
		return
	}
	busy := max(0, time.Since(x.Received)-x.Waited-waited)
	x.Account.Add(costs.Usage{costs.CPU: int64(busy), costs.Bytes: bytes, costs.Requests: 1})
}

// usual is for how long the server itself may be busy with finding out who asks or whether
// they may. When that takes longer, somebody else was asked.
const usual = time.Millisecond

// Decided says that a decision took so long, which somebody else may have made.
func (x *Exchange) Decided(took time.Duration) { x.Waited += max(0, took-usual) }

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

// Reset empties the response.
func (x *Exchange) Reset() {
	x.Close()
	// If a handler has taken the connection over, it keeps it.
	x.Response = Response{Header: x.Header[:0], Cut: x.Cut, Taken: x.Taken, Stolen: x.Stolen}
	x.CommonHeaders()
}

// Close closes the body of the response, ends the trail of the request and gives up its
// place.
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

// TakeTrail hands the trail to the caller, which serves the request from here on.
func (x *Exchange) TakeTrail() *Trail {
	t := x.Trail
	x.Trail = nil
	return t
}

// TakePlace hands the place to the caller, which serves the request from here on.
func (x *Exchange) TakePlace() Place {
	p := x.Place
	x.Place = Place{}
	return p
}

// CloseTrail records the answer's status and, if the answer is small and came soon, its end. That of
// another is recorded when it has been sent: the record of a slow request says how long that took.
func (x *Exchange) CloseTrail() {
	if x.Trail == nil {
		return
	}
	x.Trail.Answer(x.StatusCode())
	if x.small() && !x.Trail.slow() {
		x.TakeTrail().End()
	}
}

// LeavePlace gives up the place if what is left to do is to send a small answer. Whoever has read
// that may ask again at once, and finds the place free, as with upstream, whose handlers have
// returned when a small answer leaves. With a longer one the place is kept until it has been sent.
func (x *Exchange) LeavePlace() {
	if x.Reader == nil && x.small() && len(x.Bytes) <= RecordSize {
		x.Place.Release()
	}
}

// Base returns a context that ends when the server does or, if the door sees that, when the
// client leaves.
func (x *Exchange) Base() context.Context {
	if x.base == nil {
		x.base = x.Carrier.Until(x.Deadlines.base)
	}
	return x.base
}

// Carry makes Base return, from now on, what with makes of its context. Bounded contexts have its
// values, too.
func (x *Exchange) Carry(with func(context.Context) context.Context) {
	x.base, x.carries = with(x.Base()), true
}

// shares reports whether x may use a context that other requests use.
func (x *Exchange) shares() bool { return !x.Hurried && !x.Traced() && !x.carries }

// atDeadline is Base with the server's deadline.
func (x *Exchange) atDeadline() context.Context {
	if x.usual == nil {
		x.usual = x.Carrier.Until(x.Deadlines.At(x.Received))
	}
	return x.usual
}

// Prepared returns a bounded context for the work before a request is served, and a function
// to call after that. It is bounded for long-running requests, too: these have as long to be
// prepared as others have in all.
func (x *Exchange) Prepared() (context.Context, context.CancelFunc) {
	if x.Deadline.IsZero() {
		return x.atDeadline(), func() {}
	}
	return x.Bounded()
}

// Bounded returns a context that ends at the request's deadline, and a function that the
// caller must call when it does not need the context any more.
func (x *Exchange) Bounded() (context.Context, context.CancelFunc) {
	switch {
	case x.Deadline.IsZero():
		return x.Base(), func() {}
	case !x.shares():
		return context.WithDeadline(x.Base(), x.Deadline)
	default:
		return x.atDeadline(), func() {}
	}
}

// BoundedWrite is Bounded for a write that begins now: upstream limits writes to 34 s.
func (x *Exchange) BoundedWrite() (context.Context, context.CancelFunc) {
	now := time.Now()
	until := now.Add(mostOfWrites)
	late := x.Deadline.Before(until) // the request has waited, or its client wants an answer soon
	if late {
		until = x.Deadline
	}
	if late || !x.shares() {
		return context.WithDeadline(x.Base(), until)
	}
	return x.Carrier.Until(x.Deadlines.writes.At(now)), func() {}
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
