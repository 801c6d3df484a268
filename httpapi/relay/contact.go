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
	last  atomic.Int64  // time of the last answer, at first of the relay's creation, in Unix nanoseconds
	minor atomic.Int64  // the upstream's highest minor version
	known *lru.Cache    // the last connections on which the upstream was asked for its version
}

const (
	contactEvery = 5 * time.Second
	// missed is the age of the last contact after which the upstream counts as unavailable.
	missed = 3 * contactEvery
)

// Age returns how long the upstream has not answered, 0 if it answers.
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
	}, contactEvery)
}

// askVersion asks the upstream for its version once. It may be called concurrently.
func (r *Relay) askVersion(ctx context.Context) error {
	minor, err := minorOf(ctx, &r.config)
	if err != nil {
		return err
	}
	r.contact.last.Store(time.Now().UnixNano())
	for {
		seen := r.contact.minor.Load()
		if minor <= seen {
			return nil
		}
		if r.contact.minor.CompareAndSwap(seen, minor) {
			r.leaveNewer(minor)
			return nil
		}
	}
}

// encodable sends the lists and watches of built-in resources. A new connection may lead to a newer server of the
// upstream. So the first answer on a connection waits until the upstream has reported its version. With a single
// connection, that is the version of the same server.
type encodable struct {
	*Relay
	next http.RoundTripper
}

func (e encodable) RoundTrip(req *http.Request) (*http.Response, error) {
	var conn net.Conn
	traced := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) { conn = got.Conn }})
	resp, err := e.next.RoundTrip(req.WithContext(traced))
	if err != nil || conn == nil {
		return resp, err
	}
	if _, known := e.contact.known.Get(conn); !known {
		if err = e.askVersion(req.Context()); err == nil {
			e.contact.known.Add(conn, nil)
		}
	}
	if err == nil && e.contact.minor.Load() > e.config.Minor {
		err = errors.New("relay: the upstream is newer than this program")
	}
	if err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// leaveNewer leaves the built-in resources, if the upstream is newer than this program.
func (r *Relay) leaveNewer(minor int64) {
	if minor <= r.config.Minor {
		return
	}
	r.config.Logger.Warn("upstream is newer than this program: built-in resources go through", "minor", minor, "own", r.config.Minor)
	r.mu.Lock()
	defer r.mu.Unlock()
	for gvr, f := range r.followed {
		if gvr != crdResource() && r.builtIn(gvr) != nil {
			r.leaveLocked(gvr, f)
		}
	}
}

// minorOf asks the upstream for its minor version.
func minorOf(ctx context.Context, config *Config) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, contactEvery)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Upstream.JoinPath("version").String(), nil)
	if err != nil {
		return 0, fmt.Errorf("relay: %w", err)
	}
	answer, err := config.Client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("relay: %w", err)
	}
	defer answer.Body.Close()
	var v version.Info
	if answer.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&v) != nil {
		return 0, fmt.Errorf("relay: upstream answers %s to a request for its version", answer.Status)
	}
	// Managed clusters say "33+".
	minor, err := strconv.ParseInt(strings.TrimRight(v.Minor, "+"), 10, 32)
	if err != nil || v.Major != "1" {
		return 0, fmt.Errorf("relay: upstream has version %s.%s", v.Major, v.Minor)
	}
	return minor, nil
}
