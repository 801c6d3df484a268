package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/lru"

	"github.com/larder-io/larder/kv"
)

// StoreConfig configures a Store. Only MaxPage and the booleans are optional.
type StoreConfig struct {
	// Client is authenticated as the relay itself. It has no overall timeout, which would end watches.
	Client   *http.Client
	Base     *url.URL                    // of the upstream
	Resource schema.GroupVersionResource // not events (K3)
	Kind     string                      // of the objects
	// Namespaced says that the objects are in namespaces.
	Namespaced bool
	// Protobuf asks for application/vnd.kubernetes.protobuf; otherwise the store asks for JSON.
	Protobuf bool
	// Redefined says that objects may change without a new revision, as custom resources do when their CRD
	// changes. The upstream then ends its watches. So a watch that ends early makes the reader reload.
	Redefined bool
	// Prefix ends in "/". Keys are Prefix + [namespace/]name.
	Prefix string
	// Loaded is called with the bytes of the objects in each page of a list; first is true for a
	// list's first page. If a page has more than MaxPage bytes, bytes is -1.
	Loaded func(first bool, bytes int64)
	// MaxPage limits the bytes of a page of a list. 0, or more than 1 GiB, means 1 GiB.
	MaxPage int64
	Logger  *slog.Logger
}

// Store is a read-only [kv.Store] of one resource of an API server.
type Store struct {
	config StoreConfig
	codec  codec

	ctx context.Context // ends with Run; Store.mu is held while it is ended
	end context.CancelCauseFunc

	history        history
	tokens         *lru.Cache            // the upstream's continue tokens, by tokenKey
	refused        atomic.Bool           // the upstream refused the last consistent list
	watchRefusal   atomic.Pointer[error] // the upstream's last refusal of a watch, unless it has served one since
	delay          atomic.Int64          // before the next watch is opened, in nanoseconds
	lastSign       atomic.Int64          // see Silence
	openingIgnored atomic.Bool           // the opening of a watch is no sign of life, see Silence

	reading    chan struct{} // has an element while the revision is read
	goroutines sync.WaitGroup

	mu      sync.Mutex
	next    *revisionRead // has not begun; nil while no caller waits for one
	watches map[*watcher]struct{}
}

var _ kv.Store = (*Store)(nil)

var errReadOnly = errors.New("relay: the store is read-only")

// NewStore returns a Store. It does no I/O.
func NewStore(config StoreConfig) *Store {
	config.MaxPage = min(cmp.Or(config.MaxPage, maxPage), maxPage)
	config.Logger = config.Logger.With("resource", config.Resource.GroupResource().String())
	s := &Store{
		config:  config,
		codec:   newCodec(config),
		reading: make(chan struct{}, 1),
		tokens:  lru.New(keptTokens),
		watches: make(map[*watcher]struct{}),
	}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	s.resetSilence()
	return s
}

// Run blocks until ctx ends. It returns nil when all goroutines of the store have ended.
func (s *Store) Run(ctx context.Context) error {
	<-ctx.Done()
	s.mu.Lock()
	s.end(kv.ErrClosed) // from now on, no goroutine starts
	s.mu.Unlock()
	s.endWatches(kv.ErrClosed)
	s.goroutines.Wait()
	return nil
}

// fail adds the operation and the resource to an error.
func (s *Store) fail(op string, err error) error {
	return fmt.Errorf("relay: %s %s: %w", op, s.config.Resource.GroupResource(), err)
}

// Put fails: the store is read-only.
func (s *Store) Put(context.Context, string, []byte, kv.PutOptions) (kv.WriteResult, error) {
	return kv.WriteResult{}, s.fail("put", errReadOnly)
}

// Delete fails: the store is read-only.
func (s *Store) Delete(context.Context, string, int64) (kv.WriteResult, error) {
	return kv.WriteResult{}, s.fail("delete", errReadOnly)
}

// Replacements counts how often the upstream's history was replaced.
func (s *Store) Replacements() uint64 { return s.history.replacements.Load() }

// ReplacedRevision returns the highest known revision of the replaced histories.
func (s *Store) ReplacedRevision() int64 { return s.history.replaced.Load() }

// Health reads the upstream's revision. It also fails while the upstream refuses to open a watch.
func (s *Store) Health(ctx context.Context) error {
	_, err := s.Revision(ctx)
	if refusal := s.watchRefusal.Load(); err == nil && refusal != nil {
		err = *refusal
	}
	return err
}

// Refused reports whether the upstream refused the relay's last list or watch, or no longer serves the resource.
func (s *Store) Refused() bool { return s.refused.Load() || s.WatchRefused() }

// WatchRefused is Refused for watches only.
func (s *Store) WatchRefused() bool { return s.watchRefusal.Load() != nil }

// Silence returns the time since the last sign of life of the upstream, or since the store was made. Signs of life are:
//
//   - an event or a bookmark of a watch;
//   - a proof that a watch has delivered everything: a probe, or a read of the revision that returns the watch's position;
//   - the opening of a watch, unless another opening, or an end because of silence, came after the last other sign.
func (s *Store) Silence() time.Duration { return time.Since(time.Unix(0, s.lastSign.Load())) }

func (s *Store) resetSilence() {
	s.lastSign.Store(time.Now().UnixNano())
	s.openingIgnored.Store(false)
}

// Compaction returns 0: the upstream does not report its compactions.
func (s *Store) Compaction() int64 { return 0 }

// scope is a part of the resource: all of it, a namespace, or one object.
type scope struct{ namespace, name string }

// scopeOf returns the part that is below a prefix of keys. A prefix that does not end in "/" is the key of
// one object.
func (s *Store) scopeOf(prefix string) (scope, error) {
	if strings.HasPrefix(s.config.Prefix, prefix) {
		return scope{}, nil
	}
	rest, ok := strings.CutPrefix(prefix, s.config.Prefix)
	var at scope
	if s.config.Namespaced {
		var cut bool
		at.namespace, at.name, cut = strings.Cut(rest, "/")
		ok = ok && cut && at.namespace != ""
	} else {
		at.name = rest
	}
	if !ok || len(content.IsPathSegmentName(at.namespace)) > 0 || len(content.IsPathSegmentName(at.name)) > 0 {
		return scope{}, fmt.Errorf("no part of %s has the keys %q", s.config.Prefix, prefix)
	}
	return at, nil
}
