package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/larder-io/larder/bench"
)

// hint says what to do about an error, "" if the error says so itself.
func hint(err error) string {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var plain tls.RecordHeaderError
	var lookup *net.DNSError
	text := err.Error()
	has := func(part string) bool { return strings.Contains(text, part) }
	switch {
	case errors.Is(err, bench.ErrNotSeeded):
		return "create them with larder-bench seed and the same --kubeconfig, --pods, --namespaces and --nodes, or name as many as there are"
	case errors.As(err, &unknown) || has("certificate signed by unknown authority"):
		return "the kubeconfig's certificate-authority is not the one that signed the server's certificate: take the kubeconfig from this server"
	case errors.As(err, &host):
		return "set tls-server-name in the kubeconfig to a name that the certificate has"
	case errors.As(err, &invalid):
		return "the server's certificate is not valid at this time: renew it, or correct the clock"
	case errors.As(err, &plain) || has("server gave HTTP response to HTTPS client"):
		return "the server speaks no TLS at this port: check the port of the kubeconfig's server, or make it http://"
	case has("tls: certificate required") || has("tls: bad certificate") || has("tls: unknown certificate"):
		return "the server does not accept the kubeconfig's client certificate: use one that the server's client CA signed"
	case has("speaks no HTTP/2"):
		return "leave out --http2-streams"
	case errors.As(err, &lookup):
		return "the kubeconfig's server has a name that cannot be found: check it"
	case errors.Is(err, syscall.ECONNREFUSED) || has("connection refused"):
		return "nothing listens there: is the server running, and does the kubeconfig have the right port?"
	case has("HTTP request to an HTTPS server") || has(": EOF") || has("connection reset by peer") || has("broken pipe"):
		return "the server ended the connection: has it died, or does it speak TLS there (https:// in the kubeconfig)?"
	case errors.Is(err, bench.ErrTimeout) || has("bench: timeout") || errors.Is(err, context.DeadlineExceeded):
		return "allow more time with --timeout, or find out why the server takes so long"
	case has(": 401 "), has("Unauthorized"):
		return "the server does not know the kubeconfig's user: its token or certificate may have expired"
	case has(": 403 "), has("is forbidden"):
		return "the kubeconfig's user may not do this: bind a role to it, or take an administrator's kubeconfig"
	case has("/pods/") && has(": 404 "):
		return "the server has fewer pods than larder-bench seed creates: run it, or name as many --pods, --namespaces and --nodes as there are"
	case has(": 406 "):
		return "the server has no protobuf at this path: use --accept application/json"
	case has(": 404 "):
		return "the server has nothing at this path: check it with kubectl get --raw"
	case has(": 429 "):
		return "the server is too busy for these requests: lower the rate, or retry with --retry-after"
	case has("process: ") && (errors.Is(err, syscall.EINVAL) || errors.Is(err, os.ErrNotExist)):
		return "no process has this id, or it has ended: check --pid and --etcd-pid"
	}
	return ""
}
