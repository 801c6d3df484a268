package httpapi

import (
	"net/http"
)

// http returns the request for net/http code, made once. Nothing in it belongs to
// the connection, and its context does not end with the exchange.
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

// copyHeaders copies the request's headers, but for those of its connection and its
// credentials.
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
