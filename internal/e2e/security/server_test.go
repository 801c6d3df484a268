package security

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

// server is a `larder serve` under attack.
type server struct {
	*proctest.Process
	address, dir string
}

// admin is the token of a member of system:masters.
const admin = "admin-token"

// serve starts a server with the admin and other users, lines of a token file, and waits until it is ready. At the end
// of the test, its output is checked.
func serve(t *testing.T, users string, args ...string) *server {
	t.Helper()
	dir := t.TempDir()
	tokens := file(t, dir, "tokens.csv", admin+",admin,admin,system:masters\n"+users)
	port := strconv.Itoa(proctest.Port(t))
	s := &server{address: "127.0.0.1:" + port, dir: dir}
	s.Process = proctest.New(t, "the server", func() *exec.Cmd {
		return exec.Command(*larder, append([]string{
			"serve", "--data-dir", filepath.Join(dir, "data"), "--bind-address", "127.0.0.1", "--secure-port", port,
			"--unsafe-no-fsync", "--token-auth-file", tokens,
		}, args...)...)
	})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.Await(t, "ready after")
	t.Cleanup(func() { s.end(t) })
	return s
}

// end stops the server and checks that its output has no panic and no data race.
func (s *server) end(t *testing.T) {
	if err := s.Terminate(t); err != nil {
		t.Errorf("the server's exit: %v", err)
	}
	const most = 6000
	out := s.Output()
	for _, bad := range []string{"DATA RACE", "Request panicked", "Connection panicked", "panicked: true", "panic:", "invariant violated"} {
		if at := strings.Index(out, bad); at >= 0 {
			t.Errorf("the server printed %s", out[at:min(at+most, len(out))])
		}
	}
}

// file writes a file.
func file(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// dial opens a TLS connection to the server, which is closed at the end of the test.
func (s *server) dial(t *testing.T, certificates ...tls.Certificate) net.Conn {
	t.Helper()
	return proctest.DialTLS(t, s.address, &tls.Config{InsecureSkipVerify: true, Certificates: certificates})
}

// response is a server's response.
type response struct {
	code   int
	header http.Header
	body   string
}

// raw sends bytes over a new connection and reads one response.
func (s *server) raw(t *testing.T, text string, certificates ...tls.Certificate) response {
	t.Helper()
	conn := s.dial(t, certificates...)
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return readResponse(t, bufio.NewReader(conn))
}

func readResponse(t *testing.T, in *bufio.Reader) response {
	t.Helper()
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response{resp.StatusCode, resp.Header, string(body)}
}

// send sends a request as written, so that the server gets target unchanged, with a token and more header lines.
func (s *server) send(t *testing.T, token, method, target, body string, lines ...string) response {
	t.Helper()
	text := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\n", method, target)
	if token != "" {
		text += "Authorization: Bearer " + token + "\r\n"
	}
	for _, line := range lines {
		text += line + "\r\n"
	}
	if body != "" {
		text += fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	return s.raw(t, text+"\r\n"+body)
}

const (
	jsonBody  = "Content-Type: application/json"
	yamlBody  = "Content-Type: application/yaml"
	patchBody = "Content-Type: application/json-patch+json"
	mergeBody = "Content-Type: application/merge-patch+json"
)

// create creates an object, which must succeed.
func (s *server) create(t *testing.T, path, object string) {
	t.Helper()
	if a := s.send(t, admin, "POST", path, object, jsonBody); a.code != http.StatusCreated {
		t.Fatalf("POST %s: %d %s", path, a.code, a.body)
	}
}

// expect checks that a response has one of the codes.
func (a response) expect(t *testing.T, what string, codes ...int) {
	t.Helper()
	for _, code := range codes {
		if a.code == code {
			return
		}
	}
	t.Errorf("%s: got %d %.300s, want one of %v", what, a.code, a.body, codes)
}
