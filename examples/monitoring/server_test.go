package monitoring

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

const patience = 2 * time.Minute

// server is a running Larder and its administrator.
type server struct {
	url    string
	client *http.Client
}

// serve builds Larder, runs it until the test ends, and waits until it is ready. Unlike go build, go run keeps the linked
// program in the build cache.
func serve(t *testing.T) *server {
	t.Helper()
	program, dir := filepath.Join(t.TempDir(), "larder"), filepath.Join(t.TempDir(), "data")
	build := exec.Command("go", "run", "-exec", "cp", "./cmd/larder", program)
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go run: %v\n%s", err, out)
	}
	port := freePort(t)
	cmd := exec.Command(program, "dev", "--data-dir", dir, "--secure-port", strconv.Itoa(port), "--unsafe-no-fsync", "--consistency-check-interval=500ms")
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var reads sync.WaitGroup
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		reads.Wait()
		_ = cmd.Wait() // it may have ended by itself
	})
	timeout := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timeout.Stop()
	for lines := bufio.NewScanner(out); ; {
		if !lines.Scan() {
			t.Fatalf("the server did not start:\n%s", &log)
		}
		log.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "ready after") {
			break
		}
	}
	reads.Go(func() { _, _ = io.Copy(io.Discard, out) }) // until the process ends
	return &server{fmt.Sprintf("https://127.0.0.1:%d", port), clientOf(t, filepath.Join(dir, "admin.kubeconfig"))}
}

// freePort returns a TCP port that stays free until the test ends. It is below the range of outgoing
// connections. Its UDP port is bound, so that Larder's other tests do not choose it.
func freePort(t *testing.T) int {
	t.Helper()
	const first, last, tries = 17000, 30000, 1000
	for range tries {
		port := first + rand.IntN(last-first)
		address := fmt.Sprintf("127.0.0.1:%d", port)
		lock, err := net.ListenPacket("udp4", address)
		if err != nil {
			continue
		}
		listener, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port))
		if err != nil {
			lock.Close()
			continue
		}
		listener.Close()
		t.Cleanup(func() { lock.Close() })
		return port
	}
	t.Fatalf("no free port in %d tries", tries)
	return 0
}

// clientOf returns a client with the credentials of a kubeconfig.
func clientOf(t *testing.T, kubeconfig string) *http.Client {
	t.Helper()
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				CA string `yaml:"certificate-authority-data"`
			}
		}
		Users []struct {
			User struct {
				Certificate string `yaml:"client-certificate-data"`
				Key         string `yaml:"client-key-data"`
			}
		}
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	decode := func(text string) []byte {
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	user := config.Users[0].User
	pair, err := tls.X509KeyPair(decode(user.Certificate), decode(user.Key))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(decode(config.Clusters[0].Cluster.CA))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// send sends a request and returns the response's status code and body. kind is the subtype of the body's media type.
func (s *server) send(t *testing.T, method, path, kind, body string) (int, []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, nil
	}
	req.Header.Set("Content-Type", "application/"+kind)
	resp, err := s.client.Do(req)
	if err != nil {
		t.Error(err)
		return 0, nil
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, got
}

// expect sends a request and fails the test if the response's code differs.
func (s *server) expect(t *testing.T, code int, method, path, kind, body string) {
	t.Helper()
	if got, text := s.send(t, method, path, kind, body); got != code {
		t.Errorf("%s %s: %d, want %d: %.300s", method, path, got, code, text)
	}
}

// prepare creates a webhook and an APIService whose servers do not exist, so that later requests fail.
func (s *server) prepare(t *testing.T) {
	s.expect(t, 201, "POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", "json",
		`{"metadata":{"name":"broken"},"webhooks":[{"name":"broken.example.com","clientConfig":{"url":"https://127.0.0.1:1/"},"sideEffects":"None","admissionReviewVersions":["v1"],`+
			`"rules":[{"operations":["*"],"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"]}],"objectSelector":{"matchLabels":{"fail":"yes"}}}]}`)
	const services = "/apis/apiregistration.k8s.io/v1/apiservices"
	s.expect(t, 201, "POST", services, "json", `{"metadata":{"name":"v1.example.com"},"spec":{"group":"example.com","version":"v1","groupPriorityMinimum":1,"versionPriority":1}}`)
	s.await(t, services+"/v1.example.com", `"type":"Available","status":"True"`)
	s.expect(t, 200, "PATCH", services+"/v1.example.com", "merge-patch+json", `{"spec":{"service":{"name":"missing","namespace":"default"}}}`)
	s.await(t, services+"/v1.example.com", `"type":"Available","status":"False"`)
	s.awaitResponse(t, `failed calling webhook`, "POST", configMaps+"?dryRun=All", `{"metadata":{"name":"c","labels":{"fail":"yes"}}}`)
}

// await waits until an object contains a text.
func (s *server) await(t *testing.T, path, text string) {
	t.Helper()
	s.awaitResponse(t, text, "GET", path, "")
}

// awaitResponse sends a request until its response contains a text.
func (s *server) awaitResponse(t *testing.T, text, method, path, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for again := time.NewTicker(20 * time.Millisecond); ; {
		_, got := s.send(t, method, path, "json", body)
		if strings.Contains(string(got), text) {
			again.Stop()
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("%s %s: got %s, want %s in it", method, path, got, text)
		}
	}
}

const configMaps = "/api/v1/namespaces/default/configmaps"

// traffic sends some requests of each kind that a server counts.
func (s *server) traffic(t *testing.T, round int) {
	name := fmt.Sprint("c", round)
	object := func(more string) string { return `{"metadata":{"name":"` + name + `"` + more + `}}` }
	s.expect(t, 201, "POST", configMaps, "json", object(""))
	s.expect(t, 500, "POST", configMaps, "json", object(`,"labels":{"fail":"yes"}`))
	s.expect(t, 200, "GET", configMaps+"/"+name, "json", "")
	s.expect(t, 404, "GET", configMaps+"/missing", "json", "")
	s.expect(t, 200, "PUT", configMaps+"/"+name, "json", object(""))
	s.expect(t, 200, "PATCH", configMaps+"/"+name, "merge-patch+json", `{"data":{"a":"b"}}`)
	s.expect(t, 200, "DELETE", configMaps+"/"+name, "json", "")
	for _, list := range []string{configMaps, "/api/v1/pods", "/api/v1/namespaces", "/apis/apps/v1/deployments", "/api/v1/events"} {
		s.expect(t, 200, "GET", list, "json", "")
	}
	if round%4 == 0 { // reads of future revisions fail after a while
		s.expect(t, 504, "GET", "/api/v1/pods?resourceVersion=99999999&timeout=1s", "json", "")
	}
}

// watch keeps a watch open until the test ends.
func (s *server) watch(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/api/v1/pods?watch=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	var reads sync.WaitGroup
	reads.Go(func() { _, _ = io.Copy(io.Discard, resp.Body) })
	t.Cleanup(func() {
		cancel()
		reads.Wait()
		resp.Body.Close()
	})
}
