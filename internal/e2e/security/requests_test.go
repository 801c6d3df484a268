package security

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// used returns the CPU time of the server.
func (s *server) used(t *testing.T) time.Duration {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var ticks time.Duration
	for _, i := range []int{11, 12} { // utime and stime
		n, err := strconv.Atoi(fields[i])
		if err != nil {
			t.Fatal(err)
		}
		ticks += time.Duration(n)
	}
	return ticks * (time.Second / 100)
}

// cheap checks that requests cost the server little CPU time. A successful attack would take minutes.
func (h *hardenedServer) cheap(t *testing.T, what string, do func()) {
	t.Helper()
	const most = 20 * time.Second // enough with the race detector and invariants
	before := h.used(t)
	do()
	if spent := h.used(t) - before; spent > most {
		t.Errorf("%s took %v of CPU time", what, spent)
	}
}

func jsonPatches(t *testing.T, f *hardenedServer) {
	const maps = "/api/v1/namespaces/default/configmaps"
	f.create(t, maps, `{"metadata":{"name":"patches"},"data":{"a":"b"}}`)
	operations := func(n int, op string) string { return "[" + strings.Repeat(op+",", n-1) + op + "]" }
	f.cheap(t, "many operations", func() {
		const op = `{"op":"add","path":"/data/x","value":"y"}`
		f.send(t, admin, "PATCH", maps+"/patches", operations(10_001, op), patchBody).expect(t, "10,001 operations", http.StatusRequestEntityTooLarge)
		f.send(t, admin, "PATCH", maps+"/patches", operations(10_000, op), patchBody).expect(t, "10,000 operations", http.StatusOK)
	})
	f.cheap(t, "copies of copies", func() {
		ops := []string{`{"op":"add","path":"/metadata/annotations","value":{"a":"` + strings.Repeat("x", 1000) + `"}}`}
		for i := range 40 {
			ops = append(ops, fmt.Sprintf(`{"op":"copy","from":"/metadata","path":"/metadata/annotations/c%d"}`, i))
		}
		a := f.send(t, admin, "PATCH", maps+"/patches", "["+strings.Join(ops, ",")+"]", patchBody)
		a.expect(t, "exponential copies", http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity, http.StatusBadRequest)
	})
}

// laughs sends bodies that expand to far more than their size, with a user who has rights and without authentication.
func laughs(t *testing.T, f *hardenedServer) {
	var billion strings.Builder
	billion.WriteString("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: laughs}\ndata:\n  a: &a [x,x,x,x,x,x,x,x,x]\n")
	for c := 'b'; c <= 'j'; c++ {
		fmt.Fprintf(&billion, "  %c: &%[1]c [*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c,*%[2]c]\n", c, c-1)
	}
	deep := strings.Repeat("[", 200_000)
	nested := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"laughs"},"data":` + strings.Repeat(`{"a":`, 200_000) + "1" + strings.Repeat("}", 200_000) + "}"
	for what, c := range map[string][2]string{
		"aliases in YAML":     {billion.String(), yamlBody},
		"deep YAML":           {"data: " + deep, yamlBody},
		"deep YAML by dashes": {"data:\n " + strings.Repeat("- ", 200_000), yamlBody},
		"YAML of keys":        {strings.Repeat("? ", 200_000), yamlBody},
		"deep JSON":           {nested, jsonBody},
		"JSON without end":    {`{"data":` + deep, jsonBody},
	} {
		for _, token := range []string{admin, ""} {
			f.cheap(t, what, func() {
				a := f.send(t, token, "POST", "/api/v1/namespaces/default/configmaps", c[0], c[1])
				if token == "" {
					a.expect(t, what+" without authentication", http.StatusUnauthorized, http.StatusForbidden)
					return
				}
				a.expect(t, what, http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge, http.StatusCreated, http.StatusInternalServerError)
			})
		}
	}
	f.send(t, admin, "GET", "/readyz", "").expect(t, "afterwards", http.StatusOK)
}

// metricsGrow sends requests with many different names, and counts the server's time series.
func metricsGrow(t *testing.T, f *hardenedServer) {
	const many = 50 // requests per connection
	random := func(i int) {
		conn := f.dial(t)
		defer conn.Close()
		var text strings.Builder
		for j := range many {
			id := fmt.Sprintf("chosen%d-%d", i, j)
			who := admin
			if j%3 == 0 {
				who = "wrong-" + id
			}
			method := [...]string{"GET", "CHOSEN" + strconv.Itoa(i*many+j), "PUT", "OPTIONS"}[j%4]
			path := [...]string{"/" + id, "/apis/" + id + ".io/v1/" + id, "/api/v1/" + id, "/api/v1/namespaces/" + id + "/pods/" + id, "/apis/apps/" + id + "/x", "/api/v1/pods?labelSelector=" + id, "/openapi/v3/apis/" + id}[j%7]
			fmt.Fprintf(&text, "%s %s HTTP/1.1\r\nHost: %s.example.com\r\nUser-Agent: agent-%[3]s/v1\r\nAuthorization: Bearer %s\r\nAccept: application/%[3]s, */*\r\nContent-Type: application/%[3]s\r\nContent-Length: 0\r\n\r\n", method, path, id, who)
		}
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, _ = io.WriteString(conn, text.String()) // the server may end the connection first
		}()
		in := bufio.NewReader(conn)
		for range many {
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				break
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		conn.Close()
		<-sent
	}
	const rounds = 40
	before := f.series(t)
	for i := range rounds {
		random(i)
	}
	added := 0
	for series := range f.series(t) {
		if strings.Contains(strings.ToLower(series), "chosen") {
			t.Errorf("a client's text is in a label of %s", series)
		}
		if !before[series] {
			added++
		}
	}
	// The first rejections of each kind add some series, as does other work of the server.
	if added > rounds*many/10 {
		t.Errorf("%d requests added %d series", rounds*many, added)
	}
}

// series returns the server's time series, as names with labels. All buckets of a histogram count as one.
func (h *hardenedServer) series(t *testing.T) map[string]bool {
	t.Helper()
	all, bucket := make(map[string]bool), regexp.MustCompile(`,?le="[^"]*"`)
	for line := range strings.Lines(h.send(t, admin, "GET", "/metrics", "").body) {
		if series, _, ok := strings.Cut(line, "} "); ok && line[0] != '#' {
			all[bucket.ReplaceAllString(series, "")] = true
		}
	}
	return all
}

// spacedHeaders names a user in header fields whose spelling a proxy in front would not recognize and remove.
func spacedHeaders(t *testing.T, f *hardenedServer) {
	proxy := f.proxies.Sign(t, "front-proxy", nil, nil)
	const who = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	const body = `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`
	sendReview := func(lines string, certificates ...tls.Certificate) response {
		return f.raw(t, "POST "+who+" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"+jsonBody+"\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n"+lines+"\r\n"+body, certificates...)
	}
	// The server accepts the proxy's headers, so that the test can fail.
	if a := sendReview("X-Remote-User: jane\r\nX-Remote-Group: system:masters\r\n", proxy); a.code != http.StatusCreated || !strings.Contains(a.body, `"username":"jane"`) {
		t.Fatalf("from the proxy: %d %s", a.code, a.body)
	}
	stranger := f.clients.Sign(t, "front-proxy", nil, nil) // has the proxy's name, but not its CA
	for _, line := range []string{
		"X-Remote-User : root", "X-Remote-User\t: root", " X-Remote-User: root", "\tX-Remote-User: root", "X-Remote-User:root", "x-remote-user: root", "X_Remote_User: root",
		"X-Remote-User\x00: root", "X-Remote-User\r: root", "X-Remote-User\v: root", "X-Nothing: 0\r\n X-Remote-User: root", "X-Nothing: 0\nX-Remote-User: root", "X-Remote-User: \troot",
		"Impersonate-User : root", "Authorization : Bearer " + admin,
	} {
		lines := line + "\r\nX-Remote-Group: system:masters\r\n"
		for name, shown := range map[string][]tls.Certificate{"nobody": nil, "a stranger": {stranger}} {
			if a := sendReview(lines, shown...); strings.Contains(a.body, `"username":"root"`) || strings.Contains(a.body, "system:masters") {
				t.Errorf("%q from %s: %d %s", line, name, a.code, a.body)
			}
		}
		// A proxy that removes X-Remote-User forwards fields with other spellings.
		name, _, _ := strings.Cut(line, ":")
		if a := sendReview(lines, proxy); strings.ToLower(name) != "x-remote-user" && strings.Contains(a.body, `"username":"root"`) {
			t.Errorf("%q from the proxy: %d %s", line, a.code, a.body)
		}
	}
}

// clientCertificates sends valid and invalid certificates.
func clientCertificates(t *testing.T, f *hardenedServer) {
	masters := []string{"system:masters"}
	other := testcert.New(t, "clients") // a CA with the same name and another key
	leaf := f.clients.Sign(t, "leaf", nil, nil)
	chained := testcert.Of(t, leaf).Sign(t, "root", masters, nil)
	chained.Certificate = append(chained.Certificate, leaf.Certificate[0])
	narrow := f.intermediate(t, func(c *x509.Certificate) {
		c.PermittedDNSDomains, c.PermittedDNSDomainsCritical = []string{"allowed.example"}, true
	})
	serving := f.intermediate(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	for name, c := range map[string]struct {
		certificate tls.Certificate
		code        int
	}{
		"good":            {f.clients.Sign(t, "root", masters, nil), http.StatusOK},
		"by another":      {other.Sign(t, "root", masters, nil), http.StatusUnauthorized},
		"of the proxies'": {f.proxies.Sign(t, "root", masters, nil), http.StatusUnauthorized},
		"for servers": {f.clients.Sign(t, "root", masters, func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}), http.StatusUnauthorized},
		"expired":                            {f.clients.Sign(t, "root", masters, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), http.StatusUnauthorized},
		"not yet valid":                      {f.clients.Sign(t, "root", masters, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour / 2) }), http.StatusUnauthorized},
		"by a certificate that may not sign": {chained, http.StatusUnauthorized},
		"beyond the CA's constraints":        {narrow, http.StatusUnauthorized},
		"by a CA for servers":                {serving, http.StatusUnauthorized},
	} {
		a := f.raw(t, "GET /api/v1/nodes HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", c.certificate)
		a.expect(t, name, c.code)
	}
}

// intermediate returns a client certificate of an intermediate CA.
func (h *hardenedServer) intermediate(t *testing.T, edit func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	between := h.clients.Sign(t, "between", nil, func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
		edit(c)
	})
	leaf := testcert.Of(t, between).Sign(t, "root", []string{"system:masters"}, func(c *x509.Certificate) { c.DNSNames = []string{"root.elsewhere.example"} })
	leaf.Certificate = append(leaf.Certificate, between.Certificate[0])
	return leaf
}

// neverHello opens connections and sends nothing. Other clients must be served meanwhile, and the server must close
// these connections.
func neverHello(t *testing.T, f *hardenedServer) {
	const many = 500
	ended := make(chan error)
	for range many {
		conn, err := net.Dial("tcp", f.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		go func() {
			_ = conn.SetReadDeadline(time.Now().Add(proctest.Patience))
			_, err := conn.Read(make([]byte, 1))
			ended <- err
		}()
	}
	f.send(t, admin, "GET", "/readyz", "").expect(t, "a request beside silent connections", http.StatusOK)
	for range many {
		if err := <-ended; err == nil || os.IsTimeout(err) {
			t.Fatalf("a silent connection: %v", err)
		}
	}
}

// loggedTokens looks for credentials in everything that the server writes at the highest log level.
func loggedTokens(t *testing.T, f *hardenedServer) {
	const wrong, basic = "wrong-canary-token", "basic-canary-password"
	socket := base64.RawURLEncoding.EncodeToString([]byte(alice))
	f.send(t, wrong, "GET", "/api/v1/pods", "").expect(t, "a wrong token", http.StatusUnauthorized)
	f.send(t, "", "GET", "/api/v1/pods", "", "Authorization: Basic "+base64.StdEncoding.EncodeToString([]byte("user:"+basic))).expect(t, "a password", http.StatusUnauthorized, http.StatusForbidden)
	f.send(t, "", "GET", "/api/v1/namespaces/default/pods?watch=true", "", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io."+socket+", v4.channel.k8s.io")
	f.send(t, "", "GET", "/api/v1/pods?token="+wrong+"&access_token="+wrong, "")
	review := f.send(t, admin, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", `{"spec":{"token":"`+reader+`"}}`, jsonBody)
	review.expect(t, "a review", http.StatusCreated)
	audited, err := os.ReadFile(f.audit)
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]string{"the log": f.Output(), "the metrics": f.send(t, admin, "GET", "/metrics", "").body, "the profile": f.send(t, admin, "GET", "/debug/pprof/goroutine?debug=2", "").body}
	if !strings.Contains(places["the log"], "verb=") && len(places["the log"]) < 10_000 {
		t.Errorf("the log has only %d bytes", len(places["the log"]))
	}
	if len(audited) == 0 {
		t.Error("nothing was audited")
	}
	for place, text := range places {
		for _, canary := range []string{admin, alice, reader, node, wrong, basic, socket} {
			for line := range strings.Lines(text) {
				if strings.Contains(line, canary) && !strings.Contains(line, "token="+wrong) { // paths are logged, even if a client puts its token there
					t.Errorf("%s contains %s: %.300s", place, canary, line)
				}
			}
		}
	}
	// A policy that records bodies records the body of a review. Headers are never recorded.
	for line := range strings.Lines(string(audited)) {
		for _, canary := range []string{admin, alice, node, basic, socket} {
			if strings.Contains(line, canary) {
				t.Errorf("the audit log contains %s: %.300s", canary, line)
			}
		}
	}
}
