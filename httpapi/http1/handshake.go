package http1

import (
	"crypto/tls"
	"errors"
	"io"

	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/klog/v2"
)

// handshakeVerbosity is the verbosity from which each failed handshake is a line of the log
// (apiserver pkg/server/secure_serving.go).
const handshakeVerbosity = 5

// plainRefusal answers a client that speaks HTTP without TLS, as net/http does.
const plainRefusal = "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"

// refuseHandshake counts and logs a handshake of c that failed because of err, and tells a client
// that speaks HTTP without TLS why.
func (c *conn) refuseHandshake(err error) {
	metrics.TLSHandshakeErrors.Inc()
	reason := err.Error()
	var header tls.RecordHeaderError
	if errors.As(err, &header) && header.Conn != nil && looksLikeHTTP(header.RecordHeader) {
		reason = "client sent an HTTP request to an HTTPS server"
		_, _ = io.WriteString(header.Conn, plainRefusal) // a client that has left needs no answer
	}
	if klog.V(handshakeVerbosity).Enabled() {
		klog.V(handshakeVerbosity).Infof("http: TLS handshake error from %s: %s\n", c.RemoteAddr(), reason)
	}
}

// looksLikeHTTP reports whether a record's header is the beginning of a request.
func looksLikeHTTP(header [5]byte) bool {
	switch string(header[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO":
		return true
	}
	return false
}
