package statuspage

import (
	"context"
	"encoding/json"
	"net/http"
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
