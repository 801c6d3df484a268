package benchtest

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// Start starts a server without objects and closes it at the end of the test. It returns the server and the
// kubeconfig of an administrator with the token "secret".
func Start(t testing.TB) (*Server, string) {
	t.Helper()
	s := New()
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, Kubeconfig(t, s.Server)
}

// Kubeconfig writes a kubeconfig for a server.
func Kubeconfig(t testing.TB, server *httptest.Server) string {
	t.Helper()
	authority := ""
	if server.TLS != nil {
		ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
		authority = ", certificate-authority-data: " + base64.StdEncoding.EncodeToString(ca)
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: %q%s}}]
users: [{name: u, user: {token: secret}}]
`, server.URL, authority)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
