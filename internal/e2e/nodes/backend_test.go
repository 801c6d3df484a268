package nodes

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"
)

// app is a server in pods, reached through the proxies. It serves the same over HTTP and HTTPS.
type app struct {
	plain, secure         *httptest.Server
	plainPort, securePort int
}

func newApp(t testing.TB, p *pki) *app {
	t.Helper()
	a := &app{}
	handler := a.handler()
	a.plain, a.secure = httptest.NewUnstartedServer(handler), httptest.NewUnstartedServer(handler)
	for _, s := range []struct {
		*httptest.Server
		port *int
	}{{a.plain, &a.plainPort}, {a.secure, &a.securePort}} {
		s.Listener.Close()
		s.Listener, *s.port = listen(t)
		quiet(s.Server)
		t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	}
	a.plain.Start()
	a.secure.TLS = &tls.Config{Certificates: []tls.Certificate{p.serving(t)}}
	a.secure.StartTLS()
	return a
}

func (a *app) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		fmt.Fprintf(w, "%s %s host=%v length=%d %v\n%s", req.Method, req.URL.RequestURI(), req.Host != "", req.ContentLength, err, body)
		for _, name := range []string{"Authorization", "X-Remote-User", "Impersonate-User", "X-Forwarded-Uri", "X-Forwarded-Proto", "X-Own", "Accept-Encoding", "Cookie", "Connection", "Te", "Upgrade", "User-Agent", "X-Trail"} {
			if values := req.Header.Values(name); len(values) > 0 {
				fmt.Fprintf(w, "\n%s: %q", name, values)
			}
		}
		fmt.Fprintf(w, "\nfor=%v trailer=%v", req.Header.Get("X-Forwarded-For") != "", req.Trailer)
	})
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Location", req.URL.Query().Get("to"))
		w.WriteHeader(http.StatusFound)
	})
	mux.HandleFunc("/self", func(w http.ResponseWriter, req *http.Request) {
		scheme := map[bool]string{true: "https", false: "http"}[req.TLS != nil]
		w.Header().Set("Location", scheme+"://"+req.Host+"/there?a=b")
		w.WriteHeader(http.StatusMovedPermanently)
	})
	mux.HandleFunc("/page", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		io.WriteString(w, `<html><head></head><body><a href="/absolute">a</a><a href="relative">b</a><img src="//elsewhere.example.com/i"><form action="/post"></form></body></html>`)
	})
	mux.HandleFunc("/status/{code}", func(w http.ResponseWriter, req *http.Request) {
		code := 0
		fmt.Sscan(req.PathValue("code"), &code)
		w.WriteHeader(code)
	})
	mux.HandleFunc("/headers", func(w http.ResponseWriter, _ *http.Request) {
		for _, h := range [][2]string{
			{"Set-Cookie", "a=b"}, {"Set-Cookie", "c=d"}, {"Access-Control-Allow-Origin", "*"}, {"Cache-Control", "max-age=5"}, {"Audit-Id", "mine"}, {"X-Own", "1"}, {"X-Own", "2"}, {"Warning", `299 - "w"`}, {"Server", "app"},
			{"Connection", "X-Hop"}, {"X-Hop", "1"}, {"Keep-Alive", "timeout=5"}, {"Www-Authenticate", "Basic"}, {"Content-Type", "text/strange"},
		} {
			w.Header().Add(h[0], h[1])
		}
		io.WriteString(w, "headers\n")
	})
	mux.HandleFunc("/trailers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		io.WriteString(w, "body\n")
		w.(http.Flusher).Flush()
		w.Header().Set("X-Sum", "5")
		w.Header().Set(http.TrailerPrefix+"X-Late", "late")
	})
	mux.HandleFunc("/hints", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		io.WriteString(w, "after hints\n")
	})
	mux.HandleFunc("/lines", func(w http.ResponseWriter, req *http.Request) {
		for i := range 3 {
			fmt.Fprintf(w, "line %d\n", i)
			w.(http.Flusher).Flush()
		}
	})
	mux.HandleFunc("/noise", func(w http.ResponseWriter, req *http.Request) {
		var n int64
		fmt.Sscan(req.URL.Query().Get("n"), &n)
		_, _ = io.Copy(w, noise(n))
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, req *http.Request) {
		control, part := http.NewResponseController(w), make([]byte, 64<<10)
		_ = control.EnableFullDuplex()
		_ = control.Flush()
		for {
			n, err := req.Body.Read(part)
			if _, werr := w.Write(part[:n]); err != nil || werr != nil {
				return
			}
			_ = control.Flush()
		}
	})
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "some")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/websocket", func(w http.ResponseWriter, req *http.Request) {
		upgrader := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }, Subprotocols: []string{"b"}}
		conn, err := upgrader.Upgrade(w, req, nil)
		if err != nil {
			return
		}
		defer conn.Close()
		for {
			kind, message, err := conn.ReadMessage()
			if err != nil || conn.WriteMessage(kind, message) != nil {
				return
			}
		}
	})
	return mux
}

// script is a server that sends the same bytes to every client, as a malicious kubelet. Unless deaf, it first reads a
// request. With hold, it keeps the connection open.
type script struct {
	first    string
	says     string
	hold     bool
	deaf     bool // does not read the request
	repeat   bool // repeats its response forever
	listener net.Listener
	port     int

	serving sync.WaitGroup

	mu       sync.Mutex
	conns    map[net.Conn]struct{} // guarded by mu: open
	accepted int                   // guarded by mu
}

// serve starts the listener, with TLS unless config is nil.
func (s *script) serve(t testing.TB, config *tls.Config) *script {
	t.Helper()
	s.conns = make(map[net.Conn]struct{})
	s.listener, s.port = listen(t)
	if config != nil {
		s.listener = tls.NewListener(s.listener, config)
	}
	s.serving.Go(func() {
		for {
			conn, err := s.listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns[conn] = struct{}{}
			s.accepted++
			s.mu.Unlock()
			s.serving.Go(func() {
				s.respond(conn)
				conn.Close()
				s.mu.Lock()
				defer s.mu.Unlock()
				delete(s.conns, conn)
			})
		}
	})
	t.Cleanup(func() {
		s.listener.Close()
		s.mu.Lock()
		for c := range s.conns {
			c.Close()
		}
		s.mu.Unlock()
		s.serving.Wait()
	})
	return s
}

// count returns the number of connections that were accepted.
func (s *script) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted
}

// open returns the number of open connections.
func (s *script) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *script) respond(conn net.Conn) {
	in := bufio.NewReader(conn)
	for !s.deaf {
		text, err := in.ReadString('\n')
		if err != nil {
			return
		}
		if strings.TrimRight(text, "\r\n") == "" {
			break
		}
	}
	_, _ = io.WriteString(conn, s.first)
	for {
		if _, err := io.WriteString(conn, s.says); err != nil {
			return
		}
		if !s.repeat {
			break
		}
	}
	if s.hold {
		_, _ = io.Copy(io.Discard, in)
	}
}
