package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/utils/lru"
)

// contact records when the upstream last responded, and its version.
type contact struct {
	asked chan struct{} // closed after the first attempt to reach the upstream
	last  atomic.Int64  // time of the last response, at first of the relay's creation, in Unix nanoseconds
	minor atomic.Int64  // the upstream's highest minor version
	known *lru.Cache    // the minor versions that were reported on the last connections
	mixed atomic.Bool   // servers of different versions have responded on one connection
}

const (
	contactInterval = 5 * time.Second
	// missed is the age of the last contact after which the upstream counts as unavailable.
	missed = 3 * contactInterval
)

// Age returns the time since the last response of the upstream, 0 up to missed.
func (r *Relay) Age() time.Duration {
	if age := time.Since(time.Unix(0, r.contact.last.Load())); age > missed {
		return age
	}
	return 0
}

// keepContact asks the upstream for its version until ctx ends. Replicas may have several versions during an
// upgrade, so the newest that was seen counts.
func (r *Relay) keepContact(ctx context.Context) {
	asked := sync.OnceFunc(func() { close(r.contact.asked) })
	defer asked()
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		defer asked()
		if err := r.askVersion(ctx); err != nil && ctx.Err() == nil {
			r.config.Logger.Warn("upstream does not report its version", "error", err)
		}
	}, contactInterval)
}

// askVersion asks the upstream for its version once. It may be called concurrently.
func (r *Relay) askVersion(ctx context.Context) error {
	minor, conn, err := r.minor(ctx)
	if err != nil {
		return err
	}
	r.contact.last.Store(time.Now().UnixNano())
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.contact.minor.Load()
	r.contact.minor.Store(max(seen, minor))
	before, known := r.contact.known.Get(conn)
	mixed := known && before != minor && !r.contact.mixed.Swap(true)
	if mixed {
		r.config.Logger.Warn("servers of different versions respond on one connection to the upstream", "minor", minor, "before", before)
	}
	if mixed || minor > max(seen, r.config.Minor) {
		r.unfollowNewerLocked()
	}
	if conn != nil && !known { // last: from now on, responses on the connection fill caches
		r.contact.known.Add(conn, minor)
	}
	return nil
}

// unfollowNewerLocked stops following built-in resources that may no longer be served, because the upstream is newer than
// this program.
func (r *Relay) unfollowNewerLocked() {
	minor := r.contact.minor.Load()
	if minor <= r.config.Minor {
		return
	}
	r.config.Logger.Warn("upstream is newer than this program: requests for built-in resources go through", "minor", minor, "own", r.config.Minor, "except in protobuf", r.cachesNewer())
	for gvr, f := range r.followed {
		if gvr != crdResource() && r.builtIn(gvr) != nil && (f.minor.Load() < minor || !r.cachesNewer()) {
			r.unfollowLocked(f)
		}
	}
}

// cachesNewer reports whether caches may serve built-in resources of a newer upstream.
func (r *Relay) cachesNewer() bool { return r.config.CacheNewer && !r.contact.mixed.Load() }

// versionTransport sends the lists and watches of a built-in resource. Only servers of one minor version may fill its
// cache: an older server hides the fields that it does not know. If the upstream is newer than this program, that
// version is the upstream's highest. A connection has the version that was reported on it.
type versionTransport struct {
	*Relay
	f    *followed
	next http.RoundTripper
}

// versionTries is how often a request is sent until the version of the responding server is known. Over HTTP/1.1, the
// version cannot be asked for on the connection of a response. But the next request may use the connection of the
// version, unless one of many concurrent requests has taken it.
const versionTries = 10

// RoundTrip implements http.RoundTripper.
func (v versionTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	for range versionTries {
		var conn net.Conn
		resp, err := v.next.RoundTrip(req.WithContext(traced(req.Context(), &conn)))
		if err != nil {
			return nil, err
		}
		minor, known := v.contact.known.Get(conn)
		if !known {
			err = v.askVersion(req.Context())
			minor, known = v.contact.known.Get(conn)
		}
		if err == nil && known {
			if err = v.admit(minor.(int64)); err == nil {
				return resp, nil
			}
		}
		resp.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	return nil, errors.New("relay: the version of the responding server is unknown")
}

// admit returns an error unless a server of a minor version may fill the cache.
func (v versionTransport) admit(minor int64) error {
	v.f.minor.CompareAndSwap(0, minor)
	filled, highest := v.f.minor.Load(), v.contact.minor.Load()
	switch {
	case minor < filled || minor < highest && highest > v.config.Minor:
		v.f.cancel() // tried again after refusedFor
	case minor > filled:
		v.unfollow(v.f)
	default:
		return nil
	}
	err := fmt.Errorf("relay: a server of another version, 1.%d, responds; the cache is of 1.%d, and the upstream's highest is 1.%d", minor, filled, highest)
	v.config.Logger.Info("not filling a cache", "resource", v.f.gvr, "error", err)
	return err
}

// traced returns a context for a request that sets conn to the connection of the response.
func traced(ctx context.Context, conn *net.Conn) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) { *conn = got.Conn }})
}

// minor asks the upstream for its minor version. It also returns the connection of the response.
func (r *Relay) minor(ctx context.Context) (int64, net.Conn, error) {
	var conn net.Conn
	ctx, cancel := context.WithTimeout(ctx, contactInterval)
	defer cancel()
	req, err := http.NewRequestWithContext(traced(ctx, &conn), http.MethodGet, r.config.Upstream.JoinPath("version").String(), nil)
	if err != nil {
		return 0, nil, fmt.Errorf("relay: %w", err)
	}
	resp, err := r.config.Client.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("relay: %w", err)
	}
	defer resp.Body.Close()
	var v version.Info
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // to its end, so that the connection can be used again
	if resp.StatusCode != http.StatusOK || json.Unmarshal(body, &v) != nil {
		return 0, nil, fmt.Errorf("relay: upstream responds with %s to a request for its version", resp.Status)
	}
	// Managed clusters say "33+".
	minor, err := strconv.ParseInt(strings.TrimRight(v.Minor, "+"), 10, 32)
	if err != nil || v.Major != "1" {
		return 0, nil, fmt.Errorf("relay: upstream has version %s.%s", v.Major, v.Minor)
	}
	return minor, conn, nil
}
