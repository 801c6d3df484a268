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
	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/registry"
)

const (
	// Path is where the page is.
	Path = "/larder/"
	// DataPath is where its data is.
	DataPath = request.StatusPath

	// interval is how often a stream has a new snapshot, and freshness how old one may be.
	interval  = 2 * time.Second
	freshness = time.Second
)

// Config says what a [Page] shows.
type Config struct {
	Version  string
	Started  time.Time
	Registry *registry.Registry
	Streams  *streams.Streams
	Flow     *auth.Flow // may be nil
	Ledger   *costs.Ledger
	Failures *Failures
	Checks   []healthz.HealthChecker
	Lists    func() int64 // bytes that are kept of compressed lists
}

// Page is the page of one server.
type Page struct {
	config Config
	shell  *shell

	mu   sync.Mutex
	last *Snapshot // guarded by mu: without clients, which may be asked for in many ways
}

// New returns a page.
func New(config Config) *Page { return &Page{config: config, shell: newShell()} }

// Install adds the page and its data.
func (p *Page) Install(to common.PathHandler) {
	to.Handle(strings.TrimSuffix(Path, "/"), p.shell)
	to.Handle(Path, p.shell)
	to.Handle(DataPath, http.HandlerFunc(p.serveData))
}

// serveData answers with a Snapshot, or a stream of them.
func (p *Page) serveData(w http.ResponseWriter, req *http.Request) {
	p.shell.secure(w.Header())
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
		_ = out.Encode(p.snapshot(req.Context(), q)) // an error: the client has left
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
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

// snapshot returns the state of the server, which may be a moment old, and the current costs of
// clients.
func (p *Page) snapshot(ctx context.Context, q costs.Query) *Snapshot {
	p.mu.Lock()
	if p.last == nil || time.Since(p.last.Time) > freshness {
		// Whoever asks first gathers for all: that goes on if it leaves.
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

// mostFailures is how many Failures remembers, and maxText how much of each text.
const (
	mostFailures = 50
	maxText      = 300
)

// Failure is an answer that was the server's fault: its code is 500 or above.
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

// Failures remembers the last ones. The zero value remembers none.
type Failures struct {
	mu   sync.Mutex
	last []Failure // guarded by mu
	all  int64     // guarded by mu
}

// Add remembers f, and not all of its texts if they are long.
func (r *Failures) Add(f Failure) {
	for _, text := range []*string{&f.Method, &f.Path, &f.Message, &f.User, &f.UserAgent, &f.AuditID} {
		if len(*text) > maxText {
			*text = string([]byte((*text)[:maxText])) // the rest is not kept for it
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all++
	if len(r.last) == mostFailures {
		copy(r.last, r.last[1:])
		r.last = r.last[:mostFailures-1]
	}
	r.last = append(r.last, f)
}

// list returns those that are remembered, the last first, and how many there were.
func (r *Failures) list() ([]Failure, int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := append([]Failure{}, r.last...)
	slices.Reverse(last)
	return last, r.all
}

var (
	// assets are the parts of the shell.
	//
	//go:embed assets
	assets embed.FS
)

// shell is the page without its data: one answer with its style, script and icon in it. A browser
// might not get them by requests of their own: clients that are not authenticated need another
// HTTP/2 connection for each request (apiserver pkg/endpoints/filters/authentication.go), and
// Chromium gives up requests that it was about to send on the one that ends.
type shell struct {
	html   string
	policy string // Content-Security-Policy
}

func newShell() *shell {
	style, script, icon := asset("style.css"), asset("app.js"), asset("icon.svg")
	return &shell{
		html: strings.NewReplacer(
			`<link rel="stylesheet" href="style.css">`, "<style>"+style+"</style>",
			`<script src="app.js"></script>`, "<script>"+script+"</script>",
			`"icon.svg"`, `"data:image/svg+xml;base64,`+base64.StdEncoding.EncodeToString([]byte(icon))+`"`,
		).Replace(asset("index.html")),
		// The page runs its own script and loads its own data and nothing else, makes HTML of no
		// text, and no other page shows it.
		policy: "default-src 'none'; script-src " + hash(script) + "; style-src " + hash(style) + "; img-src data:; connect-src 'self'; " +
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
	}
}

func asset(name string) string {
	text, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic(err) // it is part of the program
	}
	return string(text)
}

// hash returns what a policy calls a script or style by.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// Public reports whether everybody may request path by method, because it is the page without its
// data.
func Public(method, path string) bool {
	return (path == Path || path+"/" == Path) && (method == http.MethodGet || method == http.MethodHead)
}

// secure sets the headers that keep other sites out.
func (s *shell) secure(h http.Header) {
	h.Set("Content-Security-Policy", s.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// ServeHTTP answers with the shell, or says where it is.
func (s *shell) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	s.secure(w.Header())
	switch {
	case req.Method != http.MethodGet && req.Method != http.MethodHead:
		costs.Fail(w, notSupported(req.Method))
	case req.URL.Path != Path:
		w.Header().Set("Location", Path)
		w.WriteHeader(http.StatusMovedPermanently)
	default:
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(s.html)) // an error: the client has left
	}
}
