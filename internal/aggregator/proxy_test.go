package aggregator

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
)

// TestUpgradesLeaveTheirHopBehind: what a client declares to be between it and this server
// does not reach another, nor does it take away who the client is.
func TestUpgradesLeaveTheirHopBehind(t *testing.T) {
	heard := make(chan http.Header, 1)
	remote := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		heard <- req.Header
		http.Error(w, "no", http.StatusTeapot)
	}))
	defer remote.Close()
	at, err := url.Parse(remote.URL + "/x")
	if err != nil {
		t.Fatal(err)
	}
	next := remote.Client().Transport
	p := &proxy{aggregator: new(Aggregator)}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		p.hand(w, req, at, next, &user.DefaultInfo{Name: "ann", Groups: []string{"dev"}})
	}))
	defer front.Close()

	c, err := net.Dial("tcp", front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, "GET /x HTTP/1.1\r\nHost: h\r\nConnection: X-Remote-User, Upgrade\r\nconnection: x-secret\r\nUpgrade: test\r\n"+
		"X-Secret: s\r\nX-Open: o\r\nKeep-Alive: 5\r\nTe: trailers\r\nProxy-Authorization: Basic x\r\nX-Remote-User: root\r\n\r\n")
	if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != http.StatusTeapot {
		t.Fatal(resp, err)
	}
	got := <-heard
	for name, want := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "test", "X-Open": "o", "X-Remote-User": "ann", "X-Remote-Group": "dev",
		"X-Secret": "", "Keep-Alive": "", "Te": "", "Proxy-Authorization": "",
	} {
		if values := got.Values(name); len(values) > 1 || got.Get(name) != want {
			t.Errorf("%s: %q, want %q", name, values, want)
		}
	}
}
