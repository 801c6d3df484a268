package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/larder-io/larder/internal/proctest"
)

// browser is a Chromium, controlled by its DevTools protocol.
type browser struct {
	*proctest.Process
	t       *testing.T
	devices string // host and port of the DevTools protocol
}

// newBrowser starts Chromium, until the test ends. Without Chromium, it skips the test.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	names := []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}
	at := slices.IndexFunc(names, func(name string) bool { _, err := exec.LookPath(name); return err == nil })
	if at < 0 {
		t.Skipf("no browser is installed: none of %v is in the PATH", names)
	}
	profile := t.TempDir()
	b := &browser{t: t, Process: proctest.New(t, "chromium", func() *exec.Cmd {
		cmd := exec.Command(names[at], "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run",
			"--disable-background-networking", "--disable-component-update", "--disable-sync", "--ignore-certificate-errors", // the test's own server
			"--remote-debugging-port=0", "--user-data-dir="+profile, "about:blank")
		cmd.Env = append(os.Environ(), "HOME="+profile)
		return cmd
	})}
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	b.Eventually(t, "takes orders", func() error {
		content, err := os.ReadFile(filepath.Join(profile, "DevToolsActivePort"))
		if err != nil {
			return err
		}
		port, path, whole := strings.Cut(string(content), "\n")
		if !whole || path == "" {
			return errors.New("no address of the DevTools protocol yet")
		}
		b.devices = "127.0.0.1:" + port
		return nil
	})
	t.Cleanup(b.close)
	return b
}

// close makes the browser exit, so that no process writes to the profile any more.
func (b *browser) close() {
	resp, err := http.Get("http://" + b.devices + "/json/version")
	if err != nil {
		return
	}
	defer resp.Body.Close()
	var version struct{ WebSocketDebuggerURL string }
	if json.NewDecoder(resp.Body).Decode(&version) != nil {
		return
	}
	if c, _, err := websocket.DefaultDialer.Dial(version.WebSocketDebuggerURL, nil); err == nil {
		defer c.Close()
		if c.WriteJSON(map[string]any{"id": 1, "method": "Browser.close"}) == nil {
			_ = b.Wait(b.t)
		}
	}
}

// page is a tab.
type page struct {
	b    *browser
	conn *websocket.Conn
	next int
	seen map[string][]string // protocols of responses, by path

	loaded map[string]bool // loaded documents, by loader
}

// open opens a page in a new tab. All its requests, including the icon's, have the additional header fields.
func (b *browser) open(url string, header map[string]string) *page {
	b.t.Helper()
	req, err := http.NewRequest(http.MethodPut, "http://"+b.devices+"/json/new?about:blank", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	var target struct{ WebSocketDebuggerURL string }
	if err := json.Unmarshal(body, &target); err != nil {
		b.t.Fatalf("%v: %s", err, body)
	}
	p := &page{b: b, seen: make(map[string][]string), loaded: make(map[string]bool)}
	if p.conn, _, err = websocket.DefaultDialer.Dial(target.WebSocketDebuggerURL, nil); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { p.conn.Close() })
	p.order("Network.enable", nil)
	p.order("Page.enable", nil)
	if header != nil {
		p.order("Network.setExtraHTTPHeaders", map[string]any{"headers": header})
	}
	p.order("Page.setLifecycleEventsEnabled", map[string]any{"enabled": true})
	var to struct{ LoaderID, ErrorText string }
	if err := json.Unmarshal(p.order("Page.navigate", map[string]any{"url": url}), &to); err != nil || to.LoaderID == "" || to.ErrorText != "" {
		b.t.Fatalf("%s: %v %+v", url, err, to)
	}
	if !p.loaded[to.LoaderID] { // about:blank is loaded, too
		p.read(func(*message) bool { return p.loaded[to.LoaderID] })
	}
	return p
}

// message is a message of the DevTools protocol.
type message struct {
	ID     int
	Method string
	Error  json.RawMessage
	Result json.RawMessage
	Params struct {
		LoaderID, Name string // lifecycle events
		Response       struct{ URL, Protocol string }
	}
}

// order sends a command to the page and returns the result.
func (p *page) order(method string, params any) json.RawMessage {
	p.b.t.Helper()
	p.next++
	order := map[string]any{"id": p.next, "method": method}
	if params != nil {
		order["params"] = params
	}
	if err := p.conn.WriteJSON(order); err != nil {
		p.b.t.Fatal(err)
	}
	m := p.read(func(m *message) bool { return m.ID == p.next })
	if m.Error != nil {
		p.b.t.Fatalf("%s: %s", method, m.Error)
	}
	return m.Result
}

// read reads messages up to the awaited one. Each wait has a timeout of its own, so that a test that waits in vain
// reports what it waited for.
func (p *page) read(awaited func(*message) bool) *message {
	p.b.t.Helper()
	if err := p.conn.SetReadDeadline(time.Now().Add(proctest.Patience)); err != nil {
		p.b.t.Fatal(err)
	}
	for {
		m := new(message)
		if err := p.conn.ReadJSON(m); err != nil {
			p.b.t.Fatalf("%v\n%s", err, p.b.Output())
		}
		if r := m.Params.Response; m.Method == "Network.responseReceived" {
			path, _, _ := strings.Cut(r.URL, "?")
			p.seen[path] = append(p.seen[path], r.Protocol)
		}
		if m.Method == "Page.lifecycleEvent" && m.Params.Name == "load" {
			p.loaded[m.Params.LoaderID] = true
		}
		if awaited(m) {
			return m
		}
	}
}

// run runs a script, which may use await, and decodes its result.
func (p *page) run(script string, result any) {
	p.b.t.Helper()
	raw := p.order("Runtime.evaluate", map[string]any{"expression": "(async () => {" + script + "})()", "awaitPromise": true, "returnByValue": true})
	var out struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	if err := json.Unmarshal(raw, &out); err != nil || out.ExceptionDetails != nil {
		p.b.t.Fatalf("%v %s\n%s", err, out.ExceptionDetails, script)
	}
	if err := json.Unmarshal(out.Result.Value, result); err != nil {
		p.b.t.Fatalf("%v: %s", err, raw)
	}
}

// pageWatches is more than six, the number of concurrent requests that a browser sends to one server over HTTP/1.1.
const pageWatches = 20

// pageScript lists ConfigMaps, opens watches of them, creates one, and returns the results.
const pageScript = `
	const maps = '%s/api/v1/namespaces/default/configmaps', headers = {Authorization: 'Bearer root-token'};
	const list = await (await fetch(maps, {headers})).json();
	const watches = [];
	for (let i = 0; i < %d; i++)
		watches.push(await fetch(maps + '?watch=1&i=' + i + '&resourceVersion=' + list.metadata.resourceVersion, {headers}));
	const made = await fetch(maps, {method: 'POST', headers: {...headers, 'Content-Type': 'application/json'}, body: JSON.stringify({metadata: {name: '%s'}})});
	const event = async response => {
		const reader = response.body.getReader(), text = new TextDecoder();
		let got = '';
		while (!got.includes('\n')) {
			const {value, done} = await reader.read();
			if (done) break;
			got += text.decode(value, {stream: true});
		}
		await reader.cancel();
		const e = JSON.parse(got.split('\n')[0]);
		return e.type + ' ' + e.object.metadata.name;
	};
	return {List: list.kind, Made: made.status, Events: await Promise.all(watches.map(event)),
		Hops: performance.getEntriesByType('resource').filter(e => e.name.includes('/configmaps')).map(e => e.nextHopProtocol)};`

// TestBrowserUsesHTTP2 checks that pages in a browser list and watch over HTTP/2, from the server's own origin and from
// an origin that --cors-allowed-origins allows.
func TestBrowserUsesHTTP2(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<!doctype html><title>page</title>"))
	}))
	t.Cleanup(elsewhere.Close)
	p := serve(t, "--unsafe-no-fsync", "--token-auth-file", tokens(t), "--cors-allowed-origins=^"+elsewhere.URL+"$")
	for name, url := range map[string]string{"own": p.url() + "/version", "elsewhere": elsewhere.URL + "/"} {
		var header map[string]string
		if name == "own" {
			// Otherwise the browser's request for an icon would share a connection with the script's first request. The icon's
			// request is unauthenticated, so its connection ends after the response, as in kube-apiserver, and the browser would
			// give up the script's request.
			header = map[string]string{"Authorization": "Bearer root-token"}
		}
		page := b.open(url, header)
		var saw struct {
			List         string
			Made         int
			Events, Hops []string
		}
		page.run(fmt.Sprintf(pageScript, p.url(), pageWatches, "by-"+name), &saw)
		want := slices.Repeat([]string{"ADDED by-" + name}, pageWatches)
		if saw.List != "ConfigMapList" || saw.Made != http.StatusCreated || !slices.Equal(saw.Events, want) {
			t.Errorf("%s: %+v", name, saw)
		}
		spoken := page.seen[p.url()+"/api/v1/namespaces/default/configmaps"]
		if name == "own" { // pages of other origins can read these headers only if the server exposes them
			spoken = slices.Concat(spoken, page.seen[p.url()+"/version"], saw.Hops)
		}
		if n := len(spoken); n < pageWatches+2 || slices.ContainsFunc(spoken, func(s string) bool { return s != "h2" }) {
			t.Errorf("%s: protocols %q", name, spoken)
		}
	}
	if out := b.Output(); bytes.Contains([]byte(out), []byte("ERR_HTTP2")) {
		t.Error(out)
	}
}
