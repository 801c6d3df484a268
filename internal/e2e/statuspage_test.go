package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/e2e/e2etest"
	"github.com/larder-io/larder/internal/proctest"
)

var screenshots = flag.String("screenshots", "", "directory for screenshots of the status page")

// fetch sends a request with a token to p and returns the response. The caller closes its body.
func fetch(t *testing.T, p *process, method, path, token string) *http.Response {
	t.Helper()
	config := rest.AnonymousClientConfig(p.config())
	config.BearerToken = token
	client := e2etest.HTTPClient(t, config)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	req, err := http.NewRequestWithContext(t.Context(), method, p.url()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// TestStatusPageDataNeedsTheRight checks that every client can load the page, which contains no data, and that only
// users with the right can get the data.
func TestStatusPageDataNeedsTheRight(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--token-auth-file", tokens(t))
	for _, test := range []struct {
		method, path, token string
		want                int
	}{
		{"GET", "/larder", "", 301}, {"GET", "/larder/", "", 200}, {"HEAD", "/larder/", "", 200}, {"GET", "/larder/", "alice-token", 200},
		{"GET", "/larder/app.js", "", 403}, {"GET", "/larder/app.js", "root-token", 404}, {"POST", "/larder/", "", 403}, {"POST", "/larder/", "root-token", 405}, {"GET", "/larder/", "wrong", 401},
		{"GET", "/larder/status", "", 403}, {"GET", "/larder/status?watch=1", "", 403}, {"GET", "/larder/status", "alice-token", 403},
		{"GET", "/larder/status", "wrong", 401}, {"GET", "/larder/status", "root-token", 200}, {"DELETE", "/larder/status", "root-token", 405},
		{"GET", "/larder/status?sort=x", "root-token", 400}, {"GET", "/larder/index.html", "", 403}, {"GET", "/larder/../larder/status", "", 403},
	} {
		resp := fetch(t, p, test.method, test.path, test.token)
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != test.want {
			t.Errorf("%s %s with token %q: status %d, error %v, want %d: %.200s", test.method, test.path, test.token, resp.StatusCode, err, test.want, body)
		}
		if resp.StatusCode == 200 {
			csp := resp.Header.Get("Content-Security-Policy")
			if !strings.Contains(csp, "default-src 'none'; script-src 'sha256-") || strings.Contains(csp, "unsafe") ||
				resp.Header.Get("X-Frame-Options") != "DENY" || resp.Header.Get("X-Content-Type-Options") != "nosniff" || resp.Header.Get("Set-Cookie") != "" {
				t.Errorf("header of %s: %v", test.path, resp.Header)
			}
		}
	}
	resp := fetch(t, p, "GET", "/larder/status?watch=1", "root-token")
	defer resp.Body.Close()
	in, last := bufio.NewReader(resp.Body), ""
	for range 3 {
		line, err := in.ReadString('\n')
		var s struct {
			Time      string
			Resources []struct{ Name string }
		}
		if err != nil || json.Unmarshal([]byte(line), &s) != nil || s.Time <= last || len(s.Resources) < 30 {
			t.Fatalf("error %v: got %.300s after %s", err, line, last)
		}
		last = s.Time
	}
}

// TestStatusPageCanBeDisabled checks --status-page=false.
func TestStatusPageCanBeDisabled(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--token-auth-file", tokens(t), "--status-page=false")
	for _, test := range []struct {
		path, token string
		want        int
	}{{"/larder/", "", 403}, {"/larder/", "root-token", 404}, {"/larder/status", "root-token", 404}} {
		resp := fetch(t, p, "GET", test.path, test.token)
		resp.Body.Close()
		if resp.StatusCode != test.want {
			t.Errorf("%s with token %q: status %d, want %d", test.path, test.token, resp.StatusCode, test.want)
		}
	}
}

// TestStatusPageInBrowser signs in with Chromium, checks that the page updates, and tries to inject HTML with a
// client's name.
func TestStatusPageInBrowser(t *testing.T) {
	b := newBrowser(t)
	p := serve(t, "--unsafe-no-fsync", "--token-auth-file", tokens(t))
	const hostile = `<img src=x onerror="document.title='taken'"><script>document.title='taken'</script>`
	config := rest.CopyConfig(p.config())
	config.UserAgent = hostile
	client := kubernetes.NewForConfigOrDie(config)
	for range 20 {
		if _, err := client.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	page := b.open(p.url()+"/larder/", nil)
	page.look(1180, "light")
	signIn := func(token string) {
		t.Helper()
		page.until(fmt.Sprintf("(document.getElementById('token').value = %q, document.getElementById('token-form').requestSubmit(), true)", token))
	}
	page.until(`!document.getElementById("login").hidden && document.getElementById("board").hidden`)
	page.until(`performance.getEntriesByType("resource").every((e) => e.name.startsWith("data:") || new URL(e.name).pathname == "/larder/status")`)
	signIn("wrong")
	page.until(`document.getElementById("refusal").textContent == "Unauthorized"`)
	signIn("alice-token")
	page.until(`document.getElementById("refusal").textContent.includes("cannot get path")`)
	signIn("root-token")
	page.until(`document.getElementById("state").textContent == "Live" && document.getElementById("login").hidden`)
	page.until(`document.querySelectorAll("#checks .bad").length == 0 && document.getElementById("health-sum").textContent.startsWith("all ")`)
	page.until(`(document.getElementById("by").value = "agent", document.getElementById("by").dispatchEvent(new Event("change")), true)`)
	page.until(`document.getElementById("clients").textContent.includes("onerror=\"document.title='taken'\"><script>")`)
	page.until(`document.title == "Larder status" && document.querySelectorAll("main img, main script").length == 0`)
	page.until(`location.href.endsWith("/larder/") && document.cookie == "" && sessionStorage.getItem("larder-token") == "root-token"`)
	objects := func(n int) string {
		return fmt.Sprintf(`[...document.querySelectorAll("#resources tr")].some((r) => r.cells[0].textContent == "secrets" && r.cells[1].textContent == "%d")`, n)
	}
	for i := range 3 { // the page must update by itself
		if _, err := client.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", i)}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		page.until(objects(i + 1))
	}
	pictures(t, page)
	page.until(`(document.getElementById("leave").click(), !document.getElementById("login").hidden && sessionStorage.length == 0)`)
	page.until(`document.getElementById("board").hidden`)
	t.Run("certificate", func(t *testing.T) { statusByCertificate(t, b, p) })
}

// pictures takes screenshots of the page in dark mode and on a phone.
func pictures(t *testing.T, page *page) {
	for _, look := range []struct {
		name, scheme  string
		width, height int
		back          string
	}{
		{"status-page.png", "light", 1180, 1160, "rgb(250, 250, 250)"},
		{"status-page-dark.png", "dark", 1180, 760, "rgb(12, 12, 14)"},
		{"status-page-phone.png", "dark", 360, 1000, "rgb(12, 12, 14)"},
	} {
		page.look(look.width, look.scheme)
		page.until(fmt.Sprintf(`getComputedStyle(document.body).backgroundColor == %q`, look.back))
		page.until(fmt.Sprintf(`document.documentElement.scrollWidth <= %d`, look.width))
		picture := page.screenshot(look.width, look.height)
		if len(picture) < 5_000 {
			t.Errorf("%s has %d bytes", look.name, len(picture))
		}
		if *screenshots != "" {
			if err := os.WriteFile(filepath.Join(*screenshots, look.name), picture, 0o644); err != nil {
				t.Error(err)
			}
		}
	}
}

// statusByCertificate opens the page through a proxy that sends the administrator's certificate, as kubectl proxy does.
// The page must not fetch for a token.
func statusByCertificate(t *testing.T, b *browser, p *process) {
	transport, err := rest.TransportFor(p.config())
	if err != nil {
		t.Fatal(err)
	}
	to, err := url.Parse(p.url())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out = r.Out.WithContext(ctx)
	}}
	front := httptest.NewServer(proxy)
	defer front.Close()
	defer cancel() // ends the stream, for which Close waits
	page := b.open(front.URL+"/larder/", nil)
	page.until(`document.getElementById("state").textContent == "Live" && document.getElementById("login").hidden`)
	page.until(`document.querySelectorAll("#flow tbody tr").length > 3`)
	page.order("Page.navigate", map[string]any{"url": "about:blank"})
}

// until waits until a JavaScript expression is true.
func (p *page) until(expression string) {
	p.b.t.Helper()
	proctest.Eventually(p.b.t, expression, func() error {
		var is bool
		if p.run("return Boolean("+expression+")", &is); !is {
			var text string
			p.run("return document.body.innerText.slice(0, 2000)", &text)
			return fmt.Errorf("it is false: %s", text)
		}
		return nil
	})
}

// look sets the width of the window and its color scheme.
func (p *page) look(width int, scheme string) {
	p.b.t.Helper()
	p.order("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600})
	p.order("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}})
}

// screenshot returns a screenshot of the page, down to a height.
func (p *page) screenshot(width, height int) []byte {
	p.b.t.Helper()
	var shot struct{ Data []byte }
	if err := json.Unmarshal(p.order("Page.captureScreenshot", map[string]any{
		"format": "png", "captureBeyondViewport": true, "clip": map[string]any{"x": 0, "y": 0, "width": width, "height": height, "scale": 1},
	}), &shot); err != nil {
		p.b.t.Fatal(err)
	}
	return shot.Data
}
