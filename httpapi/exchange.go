package httpapi

import (
	"math/rand/v2"
	"net/http"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/auth"
)

// chain takes one exchange through authentication, audit, impersonation, flow control and
// authorization to what answers it.
//
// It belongs to the goroutine that serves the exchange and ends with it.
type chain struct {
	exchange.Exchange

	s        *Server
	detached *http.Request
	lazy     *handlerBody // of detached; nil if it has none

	class        *auth.FlowClass // nil: flow control has no say
	impersonates bool            // the request asks to act as somebody else
	foreign      bool            // it has credentials that are not remembered
	claims       request.Attributes
	reading      reads.Read
}

// newAuditID returns a random UUID. It names requests in logs and guards nothing.
func newAuditID() string {
	const digits = "0123456789abcdef"
	var id [36]byte
	hi, lo := rand.Uint64(), rand.Uint64()
	hi = hi&^0xf000 | 0x4000 // version 4
	lo = lo&^(3<<62) | 1<<63 // variant 10
	for i := len(id) - 1; i >= 0; i-- {
		switch i {
		case 8, 13, 18, 23:
			id[i] = '-'
			continue
		}
		word := &hi
		if i > 18 {
			word = &lo
		}
		id[i] = digits[*word&0xf]
		*word >>= 4
	}
	return string(id[:])
}

// http returns the request for net/http code, made once. Nothing in it belongs to
// fasthttp, and its context does not end with the exchange.
func (x *chain) http() *http.Request {
	if x.detached == nil {
		x.detached = x.copyRequest()
	}
	return x.detached
}

// copyRequest writes the request anew from what was read of it: nobody behind reads the
// client's own words a second time, and in another way.
func (x *chain) copyRequest() *http.Request {
	req := &http.Request{
		Method:        x.Method,
		URL:           x.URL(),
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        x.copyHeaders(),
		Body:          http.NoBody,
		ContentLength: x.Carrier.BodyLength(),
		Host:          x.Host,
		RemoteAddr:    x.Carrier.RemoteAddr().String(),
		TLS:           x.Carrier.TLS(),
	}
	req.RequestURI = req.URL.RequestURI()
	if req.Host == "" {
		req.Host = string(x.Carrier.Host())
	}
	if req.ContentLength != 0 {
		x.lazy = newHandlerBody()
		req.Body = x.lazy
	}
	if req.ContentLength < 0 {
		req.TransferEncoding = []string{"chunked"}
	}
	return req.WithContext(x.Base())
}

// copyHeaders copies the request's headers from the block that was inspected: fasthttp's
// own listing takes cookies apart, and each line of them costs it all the others.
func (x *chain) copyHeaders() http.Header {
	length := x.Carrier.BodyLength()
	return x.CopyHeaders(func(key string) bool {
		switch {
		case key == "Host" || key == "Transfer-Encoding" || key == "Trailer": // are of this connection
			return false
		case key == "Content-Length" && length < 0:
			return false
		}
		return x.User == nil || !x.s.isCredential(key) // nothing behind may see or forward it
	})
}
