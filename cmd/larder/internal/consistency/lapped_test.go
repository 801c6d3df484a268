package consistency

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/larder-io/larder/cmd/larder/internal/server/servertest"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv/kvtest"
)

var tooOld = regexp.MustCompile(`^too old resource version: (\d+) \((\d+)\)$`)

// received is what one watch received.
type received struct {
	revisions []int64
	status    object // of the ERROR event
	err       error  // io.EOF if the response is complete
}

// readWatch reads a watch until it ends or, if changes is not 0, has sent that many changes. It receives an element
// from paced, if that is not nil, for each.
func readWatch(from io.Reader, changes int, paced <-chan struct{}) (t received) {
	for frames := json.NewDecoder(from); ; {
		var frame struct {
			Type   string
			Object object
		}
		if t.err = frames.Decode(&frame); t.err != nil {
			return t
		}
		if frame.Type == "ERROR" {
			t.status = frame.Object
			continue
		}
		t.revisions = append(t.revisions, frame.Object.Metadata.revision())
		if paced != nil {
			<-paced
		}
		if len(t.revisions) == changes {
			return t
		}
	}
}

// expired checks that the watch ended with an Expired error, and returns the requested and the oldest revision that its
// message names.
func (r received) expired() (requested, oldest int64, err error) {
	said := tooOld.FindStringSubmatch(r.status.Message)
	if r.err != io.EOF || r.status.Kind != "Status" || r.status.Code != http.StatusGone || said == nil {
		return 0, 0, fmt.Errorf("the watch ended with %+v, %w", r.status, r.err)
	}
	requested, _ = strconv.ParseInt(said[1], 10, 64)
	oldest, _ = strconv.ParseInt(said[2], 10, 64)
	return requested, oldest, nil
}

// lapping is a server with a short log, and what is written to its store.
type lapping struct {
	*testing.T
	*replica
	writer *client
	begun  int64 // the revision at the start
}

func newLapping(t *testing.T) *lapping {
	c := newCluster(t, 1, 0)
	c.addReplica(t, "larder0", servertest.Config{CacheBytes: 1})
	l := &lapping{T: t, replica: c.replicas[0]}
	l.writer = &client{load: &load{cluster: c, compacted: new(atomic.Int64)}, random: rand.New(rand.NewPCG(1, 2))}
	l.begun = l.writer.force(t, configMaps, "o00", "a")
	return l
}

// watch opens a watch, which is closed at the end of the test.
func (l *lapping) watch(ctx context.Context, client *http.Client, after int64, query string) io.Reader {
	l.Helper()
	url := fmt.Sprintf("%s%s?watch=1&resourceVersion=%d%s", l.url, collection, after, query)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		l.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		l.Fatalf("watch: %v %v", resp, err)
	}
	l.Cleanup(func() { resp.Body.Close() })
	return resp.Body
}

// write changes one object n times and returns the revisions. It bypasses the server, to be fast. It sends an element
// to paced for each change.
func (l *lapping) write(ctx context.Context, n int, paced chan<- struct{}) (revisions []int64) {
	l.Helper()
	padding := bytes.Repeat([]byte("x"), 8<<10)
	for last := l.begun; len(revisions) < n; revisions = append(revisions, last) {
		p := payload{l.writer.next.Add(1), "a"}
		text := []byte(p.String())
		change := kvtest.Change{Key: prefix + "o00", IfRevision: last, Value: bytes.Replace(p.stored("o00"), text, append(text, padding...), 1)}
		select {
		case paced <- struct{}{}:
		case <-ctx.Done():
			l.Fatalf("the watcher that reads got nothing after revision %d", last)
		}
		at, done, err := l.writer.cluster.outsider.Transact(ctx, []kvtest.Change{change})
		if err != nil || !done {
			l.Fatalf("write after %d: done %v, error %v", last, done, err)
		}
		last = at
	}
	return revisions
}

// TestLappedWatchers has watchers that do not read until the log has dropped their next event. They must receive the
// events sent before, without a gap, and then an Expired error. A client that resumes there must also get an Expired
// error. Other watchers must receive everything. If the server had to wait so long that it disconnected the slow
// watchers, the test tries again.
func TestLappedWatchers(t *testing.T) {
	const writes = 3000 // more than the server and sockets buffer for any reader
	l := newLapping(t)
	transport := narrow(l.replica, 64<<10)
	defer transport.CloseIdleConnections()
	slow := &http.Client{Transport: bearer{transport}}
	proctest.Eventually(t, "slow watchers are lapped", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
		defer cancel()
		var lapped []io.Reader
		for _, query := range []string{"", "&labelSelector=g%3Da", "&fieldSelector=metadata.name%3Do00", "&allowWatchBookmarks=true&timeoutSeconds=600"} {
			lapped = append(lapped, l.watch(ctx, slow, l.begun, query))
		}
		idle := l.watch(ctx, slow, l.begun, "&fieldSelector=metadata.name%3Do01")
		healthy := l.watch(ctx, l.client, l.begun, "")
		var all received
		var reading sync.WaitGroup
		paced := make(chan struct{}, 64) // limits how far the readers fall behind
		reading.Go(func() { all = readWatch(healthy, writes, paced) })
		written := l.write(ctx, writes, paced)
		reading.Wait()
		l.begun = written[len(written)-1] // for another try
		if !slices.Equal(all.revisions, written) {
			t.Fatalf("the watcher that reads got %d of %d events, status %+v, error %v", len(all.revisions), len(written), all.status, all.err)
		}
		for i, body := range lapped {
			if err := l.checkLapped(ctx, i, readWatch(body, 0, nil), written); err != nil {
				return err
			}
		}
		end := l.writer.force(t, configMaps, "o01", "b")
		if still := readWatch(idle, 1, nil); !slices.Equal(still.revisions, []int64{end}) {
			t.Errorf("the watcher without matching events got %+v", still)
		}
		return nil
	})
}

// checkLapped compares a watch's events with the writes. It returns an error if the connection broke.
func (l *lapping) checkLapped(ctx context.Context, i int, got received, written []int64) error {
	n := len(got.revisions)
	if n > len(written) || !slices.Equal(got.revisions, written[:n]) {
		l.Fatalf("watcher %d: got %v of %v", i, got.revisions, written)
	}
	if got.err != io.EOF {
		return fmt.Errorf("watcher %d: the connection broke after %d events: %w", i, n, got.err)
	}
	requested, oldest, err := got.expired()
	if err != nil || n == 0 || n == len(written) {
		l.Fatalf("watcher %d: lapped after %d of %d events: %v", i, n, len(written), err)
	}
	at := got.revisions[n-1]
	if requested != at || oldest <= at {
		l.Errorf("watcher %d: lapped after %d, got message %q", i, at, got.status.Message)
	}
	again := readWatch(l.watch(ctx, l.client, at, ""), 0, nil)
	if requested, _, err := again.expired(); err != nil || requested != at || len(again.revisions) != 0 {
		l.Errorf("watcher %d: resumed after %d: got %v, error %v", i, at, again, err)
	}
	rest := written[slices.Index(written, oldest)+1:]
	if later := readWatch(l.watch(ctx, l.client, oldest, ""), len(rest), nil); !slices.Equal(later.revisions, rest) {
		l.Errorf("watcher %d: begun after %d: got %d of %d events, status %+v, error %v", i, oldest, len(later.revisions), len(rest), later.status, later.err)
	}
	return nil
}
