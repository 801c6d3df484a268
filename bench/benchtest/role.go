package benchtest

import (
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// Role is the environment variable that makes a test program a server, when its value
// is ServerRole.
const (
	Role       = "LARDER_BENCH_TEST_ROLE"
	ServerRole = "server"
)

// Serve is what a TestMain calls in that role. It serves what the program's arguments
// ask for until the process is told to end. It knows --secure-port, the port of a
// Server of no objects, and --listen-client-urls, where an etcd says that it is ready.
// Servers that name the same such etcd in --etcd-servers share their objects.
func Serve() error {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	return serve(end)
}

func serve(end <-chan os.Signal) error {
	flags := make(map[string]string)
	for _, arg := range os.Args[1:] {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		flags[name] = value
	}
	s := New()
	if address := flags["listen-client-urls"]; address != "" {
		l, err := net.Listen("tcp", strings.TrimPrefix(address, "http://"))
		if err != nil {
			return err
		}
		s.Listener.Close()
		s.Listener = l
		s.Start()
	} else {
		l, err := net.Listen("tcp", "127.0.0.1:"+flags["secure-port"])
		if err != nil {
			return err
		}
		s.Listener.Close()
		s.Listener = l
		if etcd := flags["etcd-servers"]; etcd != "" {
			s.Config.Handler = &proxy{to: etcd}
		}
		s.StartTLS()
	}
	<-end
	s.CloseClientConnections()
	s.Close()
	return nil
}

// proxy hands requests on to the etcd, so that all its servers have the same objects.
type proxy struct{ to string }

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req, err := http.NewRequestWithContext(r.Context(), r.Method, p.to+r.URL.RequestURI(), r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	req.Header = r.Header.Clone()
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	for name, values := range resp.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(resp.StatusCode)
	w.(http.Flusher).Flush()
	buf := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buf)
		if _, failed := w.Write(buf[:n]); failed != nil || err != nil {
			if err == nil || err == io.EOF {
				return
			}
			panic(http.ErrAbortHandler)
		}
		w.(http.Flusher).Flush()
	}
}
