package httpapi

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/larder-io/larder/httpapi/costs"
	"github.com/larder-io/larder/internal/proctest"
)

// countedConn counts the bytes that a client reads.
type countedConn struct {
	net.Conn
	read *atomic.Int64
}

func (c countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// counted is a client whose requests and bytes are counted.
type counted struct {
	agent    string
	http     *http.Client
	requests int64
	bytes    atomic.Int64
}

func (p *pair) counted(t *testing.T, agent string, http2 bool) *counted {
	c := &counted{agent: agent}
	transport := &http.Transport{DisableCompression: true, ForceAttemptHTTP2: http2, TLSClientConfig: &tls.Config{RootCAs: p.pool}}
	if !http2 {
		transport.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			d := tls.Dialer{Config: &tls.Config{RootCAs: p.pool}}
			raw, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return countedConn{raw, &c.bytes}, nil
		}
	}
	c.http = &http.Client{Transport: transport}
	t.Cleanup(transport.CloseIdleConnections)
	return c
}

// get requests path, and returns the body.
func (c *counted) get(t *testing.T, method, url, accept string) []byte {
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("User-Agent", c.agent)
	req.Header.Set("Accept", accept)
	c.requests++
	resp, err := c.http.Do(req)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return body
}

// costs returns the costs of all clients since the start, by their names in a dimension.
func (p *pair) costs(t testing.TB, dimension string) map[string]costs.Usage {
	var d costs.Report
	a := p.ours.must(t, call{method: "GET", path: costs.Path + "?window=start&limit=0&by=" + dimension})
	if err := json.Unmarshal(a.body, &d); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]costs.Usage)
	for _, row := range d.Rows {
		all[strings.TrimSpace(strings.Join([]string{row.User, row.UserAgent, row.Verb, row.Resource}, " "))] = row.Used
		if row.Missed != (costs.Usage{}) {
			t.Errorf("something may be missing: %+v", row)
		}
	}
	return all
}

// TestCostsAreExact sends concurrent requests of many kinds, and compares the bytes in the server's report of each
// client with those that the client has read.
func TestCostsAreExact(t *testing.T) {
	p := newPair(t)
	p.seed(t)
	p.ours.must(t, post(configmaps, fmt.Sprintf(`{"metadata":{"name":"large"},"data":{"k":"%s"}}`, strings.Repeat("0123456789", 30_000))))
	paths := []string{
		"/api/v1/pods", "/api/v1/pods?resourceVersion=0", configmaps, configmaps + "/large", configmaps + "/c1?resourceVersion=0",
		configmaps + "/none", "/api/v1/nonsense", "/version", "/apis/", "/nowhere/at/all", configmaps + "?limit=1", "/openapi/v3",
	}
	accepts := []string{"application/json", "application/vnd.kubernetes.protobuf", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/yaml"}
	var clients []*counted
	var running sync.WaitGroup
	for i := range 6 {
		c := p.counted(t, fmt.Sprintf("exact/%d", i), i >= 4)
		clients = append(clients, c)
		running.Go(func() {
			for range 60 {
				method := "GET"
				if rand.IntN(8) == 0 {
					method = "HEAD"
				}
				c.get(t, method, "https://"+p.addr+paths[rand.IntN(len(paths))], accepts[rand.IntN(len(accepts))])
			}
		})
	}
	running.Wait()
	proctest.Eventually(t, "all is counted", func() error { // a client may have its response before that
		all := p.costs(t, "agent")
		for i, c := range clients {
			got := all[c.agent]
			if got[costs.Requests] != c.requests || i < 4 && got[costs.Bytes] != c.bytes.Load() || got[costs.Bytes] == 0 || got[costs.CPU] <= 0 || got[costs.Events] != 0 {
				return fmt.Errorf("%s: %+v, want %d requests and %d bytes", c.agent, got, c.requests, c.bytes.Load())
			}
		}
		return nil
	})
	names := p.costs(t, "resource")
	for _, want := range []string{"pods", "configmaps", "nonsense", "/version", "/apis", "/nowhere", "/openapi"} {
		if names[want][costs.Requests] == 0 {
			t.Errorf("nothing is counted for %s: %v", want, names)
		}
	}
}

// TestWatchesAreCharged follows watches over HTTP/1.1 and HTTP/2 to their ends, and compares their bytes and events
// with the server's report.
func TestWatchesAreCharged(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	p.ours.must(t, post(configmaps, configmap("one", "", "")))
	c := p.dial(t)
	fmt.Fprintf(c, "GET %s?watch=1&resourceVersion=0 HTTP/1.1\r\nHost: h\r\nUser-Agent: one\r\n\r\n", configmaps)
	in, bytes, events := bufio.NewReader(c), 0, 0
	for { // the head
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if bytes += len(line); line == "\r\n" {
			break
		}
	}
	body := bufio.NewReader(httputil.NewChunkedReader(in))
	two := p.counted(t, "two", true)
	req, _ := http.NewRequest("GET", "https://"+p.addr+configmaps+"?watch=1&resourceVersion=0", nil)
	req.Header.Set("User-Agent", two.agent)
	resp, err := two.http.Do(req)
	if err != nil || resp.ProtoMajor != 2 {
		t.Fatalf("got %v and error %v, want an HTTP/2 response", resp, err)
	}
	defer resp.Body.Close()
	second := bufio.NewReader(resp.Body)
	const changes = 20
	for i := range changes {
		p.ours.must(t, put(configmaps+"/one", configmap("one", "", fmt.Sprint(i))))
	}
	for range changes + 1 {
		line, err := body.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		bytes, events = bytes+len(line), events+1
		if _, err := second.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	proctest.Eventually(t, "the events are charged", func() error {
		all := p.costs(t, "client")
		for name, want := range map[string]int{"one": bytes, "two": 0} {
			got := all["system:apiserver "+name+" watch configmaps"]
			if got[costs.Requests] != 1 || got[costs.Events] != int64(events) || want > 0 && got[costs.Bytes] != int64(want) || got[costs.Bytes] == 0 || got[costs.CPU] <= 0 {
				return fmt.Errorf("%s: %+v, want %d events and %d bytes", name, got, events, want)
			}
		}
		return nil
	})
}

// slowly is an authorizer that waits for now before it decides.
type slowly struct{ now chan struct{} }

// Authorize implements authorizer.Authorizer.
func (s slowly) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetName() == "slow" {
		<-s.now
	}
	return authorizer.DecisionAllow, "", nil
}

// TestWaitingIsNotCharged checks that a client is not charged for time spent waiting: for a webhook, or for a client
// that does not read or send. The rest of the work also takes longer on a busy machine, but not longer after a longer
// wait.
func TestWaitingIsNotCharged(t *testing.T) {
	now := make(chan struct{})
	defer close(now)
	p := newPairWith(t, func(c *Config) {
		c.Authorizer = slowly{now}
		start := time.Now()
		c.cpu = func() time.Duration { return 100 * time.Since(start) } // all that is measured is charged
	})
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	value := strings.Repeat("0123456789", 90_000)
	for i := range 12 {
		p.ours.must(t, post(configmaps, configmap(fmt.Sprint("c", i), "", value)))
	}
	const most = 32 * time.Second
	for wait := time.Second; ; wait *= 2 {
		charged := p.chargedFor(t, wait, now)
		if charged <= wait/2 {
			return
		}
		t.Logf("one waited for %v, and is charged %v", wait, charged)
		if wait >= most {
			t.Fatalf("charged %v for a wait of %v, want at most half of the wait", charged, wait)
		}
	}
}

// chargedFor has clients wait, and returns the highest charge of a client.
func (p *pair) chargedFor(t *testing.T, wait time.Duration, now chan<- struct{}) time.Duration {
	t.Helper()
	name := func(agent string) string { return fmt.Sprint(agent, wait) }
	body := configmap(name("new"), "", "")
	began, clients := time.Now(), make(map[string]*tls.Conn)
	for agent, request := range map[string]string{
		"authorized": fmt.Sprintf("GET %s/slow HTTP/1.1\r\nHost: h\r\nUser-Agent: %s\r\n\r\n", configmaps, name("authorized")),
		"reader":     fmt.Sprintf("GET %s HTTP/1.1\r\nHost: h\r\nUser-Agent: %s\r\n\r\n", configmaps, name("reader")),
		"writer": fmt.Sprintf("POST %s HTTP/1.1\r\nHost: h\r\nUser-Agent: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			configmaps, name("writer"), len(body), body[:10]),
	} {
		clients[agent] = p.dial(t)
		io.WriteString(clients[agent], request)
	}
	proctest.Eventually(t, "they have waited", func() error {
		if waited := time.Since(began); waited < wait {
			return fmt.Errorf("for %v", waited)
		}
		return nil
	})
	now <- struct{}{}
	io.WriteString(clients["writer"], body[10:])
	for agent, c := range clients {
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: reading the response: %v", agent, err)
		}
		if n, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Errorf("%s: %v after %d bytes of the body", agent, err, n)
		}
		resp.Body.Close()
	}
	var most time.Duration
	proctest.Eventually(t, "all are charged", func() error {
		all := p.costs(t, "agent")
		for agent := range clients {
			got := all[name(agent)]
			if got[costs.Requests] != 1 || got[costs.CPU] <= 0 {
				return fmt.Errorf("%s: %+v", agent, got)
			}
			most = max(most, got.Time())
		}
		return nil
	})
	return most
}
