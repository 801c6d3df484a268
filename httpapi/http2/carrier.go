package http2

import (
	"bytes"
	"crypto/tls"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/larder-io/larder/httpapi/exchange"
)

// A request is the exchange.Carrier of its exchange.
var _ exchange.Carrier = (*request)(nil)

func (r *request) Major() int { return 2 }

func (r *request) Method() []byte { return r.at(r.pseudo[pseudoMethod]) }

// Target implements exchange.Carrier. The target of CONNECT is a host.
func (r *request) Target() []byte {
	if !r.has(pseudoPath) {
		return r.at(r.pseudo[pseudoAuthority])
	}
	return r.at(r.pseudo[pseudoPath])
}

func (r *request) Host() []byte {
	if host := r.at(r.pseudo[pseudoAuthority]); len(host) > 0 {
		return host
	}
	return r.Peek("Host")
}

func (r *request) Peek(name string) []byte {
	for _, l := range r.lines {
		if l.name.to-l.name.from == len(name) && strings.EqualFold(string(r.at(l.name)), name) {
			return r.at(l.value)
		}
	}
	return nil
}

func (r *request) Lines() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for _, l := range r.lines {
			if !yield(r.at(l.name), r.at(l.value)) {
				return
			}
		}
	}
}

func (r *request) Inspect() exchange.Facts { return r.facts }

func (r *request) Fields() []exchange.Field { return r.room[:0] }

// Chunks implements exchange.Carrier: a stream says by itself where it ends.
func (r *request) Chunks() bool { return true }

func (r *request) BodyLength() int64 { return r.length }

func (r *request) TLS() *tls.ConnectionState { return r.c.tls }

func (r *request) Internal() bool { return false }

// keptSlots is how many slots a connection keeps while no request has them.
const keptSlots = 4

// Slot implements exchange.Carrier. Concurrent requests have different slots, and later requests reuse them.
func (r *request) Slot() *any {
	if r.slot != nil {
		return r.slot
	}
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	if last := len(r.c.slots) - 1; last >= 0 {
		r.slot, r.c.slots = r.c.slots[last], r.c.slots[:last]
	} else {
		r.slot = new(any)
	}
	return r.slot
}

// leaveSlot leaves the slot to others.
func (r *request) leaveSlot() {
	if r.slot == nil {
		return
	}
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	if len(r.c.slots) < keptSlots && *r.slot != nil {
		r.c.slots = append(r.c.slots, r.slot)
	}
	r.slot = nil
}

// StartStream implements exchange.Carrier. The head is sent at once.
func (r *request) StartStream(code int, header []exchange.Field) exchange.BodyStream {
	st := r.Stream
	block := st.appendFields(appendStatus(nil, code), header)
	_, _ = st.write(appendHeaders(nil, st.id, block, false, initialFrame), nil, false) // an error will come back from the first write
	r.streamed = st.written
	return exchange.BodyStream{Conn: st, End: st.End, Left: st.Left}
}

// hijacked returns the argument of Response.Hijack.
func (r *request) hijacked() exchange.Hijacked {
	st := r.Stream
	t := exchange.Hijacked{Conn: st, Begin: st.beginResponse, End: st.endResponse, Left: st.Left}
	if st.body != nil {
		t.Body = &hijackedBody{st: st, expects: r.expects}
	}
	return t
}

// beginResponse sends the head of a response.
func (st *Stream) beginResponse(code int, header http.Header) error {
	block := st.appendFields(appendStatus(nil, code), fieldsOf(header))
	_, err := st.write(appendHeaders(nil, st.id, block, false, initialFrame), nil, false)
	return err
}

// endResponse sends the trailer and says that the body is whole.
func (st *Stream) endResponse(trailer http.Header) error {
	if len(trailer) == 0 {
		return st.End()
	}
	var block []byte
	for _, f := range fieldsOf(trailer) {
		block = appendValid(block, f)
	}
	_, err := st.write(appendHeaders(nil, st.id, block, true, initialFrame), nil, true)
	return err
}

func fieldsOf(header http.Header) []exchange.Field {
	fields := make([]exchange.Field, 0, len(header))
	for name, values := range header {
		for _, value := range values {
			fields = append(fields, exchange.Field{Name: name, Value: value})
		}
	}
	return fields
}

// hijackedBody is the body of a request when its response was taken over.
type hijackedBody struct {
	st      *Stream
	expects bool
}

func (b *hijackedBody) Read(p []byte) (int, error) { return b.st.read(p) }

func (b *hijackedBody) Proceed(io.Writer) error {
	r := request{Stream: b.st, expects: b.expects}
	b.expects = false
	return r.proceed()
}

// answer has the request answered.
func (r *request) answer(received time.Time) *exchange.Exchange {
	x := new(exchange.Exchange)
	switch {
	case r.large:
		x.Init(r, received, nil)
		x.Reset()
		x.Text(http.StatusRequestHeaderFieldsTooLarge, "431 Request Header Fields Too Large")
	case r.badExpectation:
		x.Init(r, received, nil)
		x.Reset()
		x.Head(http.StatusExpectationFailed, "")
	case string(r.Target()) == "*" && bytes.Equal(r.Method(), []byte(http.MethodOptions)):
		x.Init(r, received, nil) // of the server as a whole
		x.Head(http.StatusOK, "")
	default:
		return r.c.s.config.Handler(r, received)
	}
	return x
}
