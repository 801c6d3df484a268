package statuspage

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/kube-openapi/pkg/common"

	"github.com/larder-io/larder/httpapi/costs"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/httpapi/streams"
	"github.com/larder-io/larder/internal/flow"
	"github.com/larder-io/larder/internal/registry"
)

const (
	// Path is the path of the page.
	Path = "/larder/"
	// DataPath is the path of its data.
	DataPath = request.StatusPath

	// interval is the time between the snapshots of a stream. A snapshot is reused until it is older than
	// freshness.
	interval  = 2 * time.Second
	freshness = time.Second
	// maxStream limits a stream. The page then opens another one, if its user still has the right.
	maxStream = 30 * time.Minute
)

// Config configures a [Page].
type Config struct {
	Version  string
	Started  time.Time
	Registry *registry.Registry
	Followed func() []*registry.Resource // further resources, whose stores are not asked; may be nil
	Streams  *streams.Streams
	Flow     *flow.Control // may be nil
	Ledger   *costs.Ledger
	Failures *Failures
	Checks   []healthz.HealthChecker
	Lists    func() int64 // bytes of cached compressed lists
}

// Page is the page of one server.
type Page struct {
	config Config
	html   string // the page without its data
	policy string // Content-Security-Policy

	mu   sync.Mutex
	last *Snapshot // guarded by mu: without clients, which each request may group differently
}

// New returns a page. Style, script and icon are part of its HTML, because separate requests for them might
// fail. Each request of an unauthenticated client ends its HTTP/2 connection (apiserver
// pkg/endpoints/filters/authentication.go). Chromium then abandons requests that it was about to send.
func New(config Config) *Page {
	style, script, icon := asset("style.css"), asset("app.js"), asset("icon.svg")
	return &Page{
		config: config,
		html: strings.NewReplacer(
			`<link rel="stylesheet" href="style.css">`, "<style>"+style+"</style>",
			`<script src="app.js"></script>`, "<script>"+script+"</script>",
			`"icon.svg"`, `"data:image/svg+xml;base64,`+base64.StdEncoding.EncodeToString([]byte(icon))+`"`,
		).Replace(asset("index.html")),
		// The page runs only its own script, loads only its own data, never inserts text as HTML, and
		// cannot be framed.
		policy: "default-src 'none'; script-src " + hash(script) + "; style-src " + hash(style) + "; img-src data:; connect-src 'self'; " +
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
	}
}

// Install registers the page and its data.
func (p *Page) Install(to common.PathHandler) {
	to.Handle(strings.TrimSuffix(Path, "/"), http.HandlerFunc(p.servePage))
	to.Handle(Path, http.HandlerFunc(p.servePage))
	to.Handle(DataPath, http.HandlerFunc(p.serveData))
}

// serveData responds with a Snapshot, or a stream of them.
func (p *Page) serveData(w http.ResponseWriter, req *http.Request) {
	p.secure(w.Header())
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		costs.Fail(w, notSupported(req.Method))
		return
	}
	parameters := req.URL.Query()
	q, err := costs.ParseQuery(parameters.Get)
	if err != nil {
		costs.Fail(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	if parameters.Get("limit") == "" {
		q.Limit = 12
	}
	out, lines := json.NewEncoder(w), http.NewResponseController(w)
	if !parameters.Has("watch") || !request.IsTrue(parameters.Get("watch")) || req.Method == http.MethodHead {
		w.Header().Set("Content-Type", "application/json")
		_ = out.Encode(p.snapshot(req.Context(), q)) // an error means that the client has disconnected
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	ticker, end := time.NewTicker(interval), time.Now().Add(maxStream)
	defer ticker.Stop()
	for time.Now().Before(end) {
		if out.Encode(p.snapshot(req.Context(), q)) != nil || lines.Flush() != nil {
			return
		}
		select {
		case <-req.Context().Done():
			return
		case <-ticker.C:
		}
	}
}

// snapshot returns a state of the server that is not older than freshness, and the current costs of clients.
func (p *Page) snapshot(ctx context.Context, q costs.Query) *Snapshot {
	p.mu.Lock()
	if p.last == nil || time.Since(p.last.Time) > freshness {
		// The first request gathers for all others, even if its client leaves.
		p.last = p.gather(context.WithoutCancel(ctx))
	}
	s := *p.last
	p.mu.Unlock()
	s.Clients = p.config.Ledger.Report(q)
	return &s
}

// notSupported is the error for a method that is not served.
func notSupported(method string) error {
	return apierrors.NewMethodNotSupported(schema.GroupResource{Group: "larder", Resource: "status"}, strings.ToLower(method))
}

// maxFailures limits the number of failures that are kept, and maxText the length of their texts.
const (
	maxFailures = 50
	maxText     = 300
)

// Failure is a response with a code of 500 or above.
type Failure struct {
	Time      time.Time `json:"time"`
	Code      int       `json:"code"`
	Method    string    `json:"method"`
	Path      string    `json:"path"`
	Message   string    `json:"message"`
	User      string    `json:"user"`
	UserAgent string    `json:"userAgent"`
	AuditID   string    `json:"auditID"`
}

// Failures keeps the last failures. The zero value is empty.
type Failures struct {
	mu   sync.Mutex
	last []Failure // guarded by mu
	all  int64     // guarded by mu
}

// Add adds f and truncates long texts.
func (r *Failures) Add(f Failure) {
	for _, text := range []*string{&f.Method, &f.Path, &f.Message, &f.User, &f.UserAgent, &f.AuditID} {
		if len(*text) > maxText {
			*text = strings.Clone((*text)[:maxText]) // so that the rest is not kept in memory
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all++
	if len(r.last) == maxFailures {
		r.last = slices.Delete(r.last, 0, 1)
	}
	r.last = append(r.last, f)
}

// list returns the kept failures, the newest first, and the number of all.
func (r *Failures) list() ([]Failure, int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := append([]Failure{}, r.last...)
	slices.Reverse(last)
	return last, r.all
}

var (
	// assets are the parts of the page.
	//
	//go:embed assets
	assets embed.FS
)

func asset(name string) string {
	text, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic(err) // the file is embedded in the program
	}
	return string(text)
}

// hash returns the source expression of a script or style for the policy.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// Public reports whether a request needs no authorization, because it is for the page without its data.
func Public(method, path string) bool {
	return (path == Path || path+"/" == Path) && (method == http.MethodGet || method == http.MethodHead)
}

// secure sets the headers that protect the page from other sites.
func (p *Page) secure(h http.Header) {
	h.Set("Content-Security-Policy", p.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// servePage sends the page without its data, or redirects to it.
func (p *Page) servePage(w http.ResponseWriter, req *http.Request) {
	p.secure(w.Header())
	switch {
	case req.Method != http.MethodGet && req.Method != http.MethodHead:
		costs.Fail(w, notSupported(req.Method))
	case req.URL.Path != Path:
		w.Header().Set("Location", Path)
		w.WriteHeader(http.StatusMovedPermanently)
	default:
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(p.html)) // an error means that the client has disconnected
	}
}
