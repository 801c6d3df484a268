package benchtest

import (
	"net"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// Role is the environment variable that turns a test program into a server if its value is ServerRole.
const (
	Role       = "LARDER_BENCH_TEST_ROLE"
	ServerRole = "server"
)

// Serve runs an API server or an etcd until SIGTERM. A TestMain with that role calls it. The program's arguments
// configure it: --secure-port is the port of an API server without objects, --listen-client-urls the address of an
// etcd. API servers with the same --etcd-servers share their objects.
func Serve() error {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	flags := make(map[string]string)
	for _, arg := range os.Args[1:] {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		flags[name] = value
	}
	s := New()
	address, etcd := strings.CutPrefix(flags["listen-client-urls"], "http://")
	if !etcd {
		address = "127.0.0.1:" + flags["secure-port"]
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	s.Listener.Close()
	s.Listener = l
	if etcd {
		s.Start()
	} else {
		if etcd := flags["etcd-servers"]; etcd != "" { // the etcd has the objects of all its servers
			to, err := url.Parse(etcd)
			if err != nil {
				return err
			}
			s.Config.Handler = &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
		}
		s.StartTLS()
	}
	<-end
	s.CloseClientConnections()
	s.Close()
	return nil
}
