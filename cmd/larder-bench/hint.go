package main

import "regexp"

// hints say what to do about errors, which they know by their texts. The first that matches is given.
var hints = []struct {
	text   *regexp.Regexp
	advice string
}{
	{regexp.MustCompile(`pods that seeding makes`), "create them with larder-bench seed and the same --kubeconfig, --pods, --namespaces and --nodes, or name as many as there are"},
	{regexp.MustCompile(`signed by unknown authority`), "the kubeconfig's certificate-authority is not the one that signed the server's certificate: take the kubeconfig from this server"},
	{regexp.MustCompile(`x509: certificate is (not )?valid for|cannot validate certificate for`), "set tls-server-name in the kubeconfig to a name that the certificate has"},
	{regexp.MustCompile(`x509: certificate `), "the server's certificate is not valid at this time: renew it, or correct the clock"},
	{regexp.MustCompile(`does not look like a TLS handshake|gave HTTP response to HTTPS client`), "the server speaks no TLS at this port: check the port of the kubeconfig's server, or make it http://"},
	{regexp.MustCompile(`speaks no HTTP/2`), "leave out --http2-streams"},
	{regexp.MustCompile(`tls: (certificate required|bad certificate|unknown certificate)`), "the server does not accept the kubeconfig's client certificate: use one that the server's client CA signed"},
	{regexp.MustCompile(`: lookup `), "the kubeconfig's server has a name that cannot be found: check it"},
	{regexp.MustCompile(`connection refused`), "nothing listens there: is the server running, and does the kubeconfig have the right port?"},
	{regexp.MustCompile(`HTTP request to an HTTPS server|: EOF|connection reset by peer|broken pipe`), "the server ended the connection: has it died, or does it speak TLS there (https:// in the kubeconfig)?"},
	{regexp.MustCompile(`bench: timeout|deadline exceeded`), "allow more time with --timeout, or find out why the server takes so long"},
	{regexp.MustCompile(`: 401 |Unauthorized`), "the server does not know the kubeconfig's user: its token or certificate may have expired"},
	{regexp.MustCompile(`: 403 |is forbidden`), "the kubeconfig's user may not do this: bind a role to it, or take an administrator's kubeconfig"},
	{regexp.MustCompile(`/pods/.*: 404 `), "the server has fewer pods than larder-bench seed creates: run it, or name as many --pods, --namespaces and --nodes as there are"},
	{regexp.MustCompile(`: 406 `), "the server has no protobuf at this path: use --accept application/json"},
	{regexp.MustCompile(`: 404 `), "the server has nothing at this path: check it with kubectl get --raw"},
	{regexp.MustCompile(`: 429 `), "the server is too busy for these requests: lower the rate, or retry with --retry-after"},
	{regexp.MustCompile(`process: .*(invalid argument|no such)`), "no process has this id, or it has ended: check --pid and --etcd-pid"},
}

// hint says what to do about an error, "" if the error says so itself.
func hint(text string) string {
	for _, h := range hints {
		if h.text.MatchString(text) {
			return h.advice
		}
	}
	return ""
}
