package relay_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/larder-io/larder/internal/registry/wire"
	"github.com/larder-io/larder/internal/relay"
	"github.com/larder-io/larder/kv"
)

// receive returns the next delivery of a watch, as text.
func receive(t *testing.T, watch <-chan kv.WatchResponse) string {
	t.Helper()
	select {
	case response, ok := <-watch:
		if !ok {
			return "closed"
		}
		return text(response)
	case <-time.After(time.Hour):
		t.Fatal("the watch delivers nothing")
		return ""
	}
}

// expect compares the next deliveries of a watch.
func expect(t *testing.T, watch <-chan kv.WatchResponse, want ...string) {
	t.Helper()
	for _, one := range want {
		if got := receive(t, watch); got != one {
			t.Errorf("got %q, want %q", got, one)
		}
	}
}

// silent checks that a watch delivers nothing now.
func silent(t *testing.T, watch <-chan kv.WatchResponse) {
	t.Helper()
	synctest.Wait()
	select {
	case response := <-watch:
		t.Errorf("got %q, want nothing", text(response))
	default:
	}
}

func TestGet(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, u *upstream, store *relay.Store) {
		u.put("a/x", "1")
		u.put("a/y", "1")
		revision := u.put("b/x", "2")
		item, found, at, err := store.Get(t.Context(), prefix+"b/x")
		if err != nil || !found || at != revision || item.Revision != revision || item.Key != prefix+"b/x" {
			t.Errorf("got %+v, %v at %d: %v", item, found, at, err)
		}
		if want := u.value(change{revision: revision, key: "b/x", data: "2"}); string(item.Value) != want {
			t.Errorf("value %q, want %q", item.Value, want)
		}
		if _, ok := wire.CutEnvelope(item.Value, wire.Envelope("v1", "ConfigMap")); ok != u.protobuf {
			t.Errorf("envelope of %q: %v", item.Value, ok)
		}
		last := u.elsewhere()
		if _, found, at, err := store.Get(t.Context(), prefix+"b/none"); found || at != last || err != nil {
			t.Errorf("missing key: %v at %d: %v", found, at, err)
		}
		for _, key := range []string{prefix, prefix + "b/", prefix + "b", "/other/b/x", prefix + "a/b/c", prefix + "../x", prefix + "a/%2e"} {
			if _, _, _, err := store.Get(t.Context(), key); err == nil {
				t.Errorf("get of %q succeeds", key)
			}
		}
	})
}

func TestPagesAreOfOneRevision(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, u *upstream, store *relay.Store) {
		var want []string
		for i := range 7 {
			u.put(fmt.Sprintf("n%d/x", i%3), "1")
			u.put(fmt.Sprintf("n%d/y%d", i%3, i), "1")
		}
		all, err := store.Range(t.Context(), kv.RangeOptions{Prefix: prefix})
		if err != nil || all.More || all.Count != int64(len(all.Items)) {
			t.Fatalf("%d items of %d: %v", len(all.Items), all.Count, err)
		}
		for _, item := range all.Items {
			want = append(want, item.Key)
		}
		var got []string
		left := all.Count
		revision, err := kv.RangeAll(t.Context(), store, kv.RangeOptions{Prefix: prefix, Limit: 3}, func(page kv.Page) error {
			if page.Count != left {
				t.Errorf("a page says %d, want %d", page.Count, left)
			}
			left -= int64(len(page.Items))
			for _, item := range page.Items {
				got = append(got, item.Key)
			}
			u.put("n0/later", "1")
			return nil
		})
		if err != nil || revision != all.Revision || !slices.Equal(got, want) || !slices.IsSorted(got) {
			t.Errorf("pages at %d have %q: %v; want at %d %q", revision, got, err, all.Revision, want)
		}
		part, err := store.Range(t.Context(), kv.RangeOptions{Prefix: prefix + "n1/", Revision: all.Revision})
		if err != nil || len(part.Items) != 3 || part.Items[0].Key != prefix+"n1/x" {
			t.Errorf("namespace: %+v, %v", part, err)
		}
	})
}

func TestPagesThatAreGone(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, u *upstream, store *relay.Store) {
		for i := range 5 {
			u.put(fmt.Sprintf("a/%d", i), "1")
		}
		first, err := store.Range(t.Context(), kv.RangeOptions{Prefix: prefix, Limit: 2})
		if err != nil || !first.More {
			t.Fatal(first, err)
		}
		next := kv.RangeOptions{Prefix: prefix, Limit: 2, Revision: first.Revision, Start: prefix + "a/1\x00"}
		if _, err := store.Range(t.Context(), next); err != nil {
			t.Error(err)
		}
		unknown := next
		unknown.Start = prefix + "a/2\x00"
		if _, err := store.Range(t.Context(), unknown); !errors.Is(err, kv.ErrCompacted) {
			t.Errorf("unknown start: %v", err)
		}
		unknown.Revision = 0
		if _, err := store.Range(t.Context(), unknown); err == nil || errors.Is(err, kv.ErrCompacted) {
			t.Errorf("start without a revision: %v", err)
		}
		u.put("a/9", "1")
		u.locked(func() { u.compacted = u.revision })
		for _, opts := range []kv.RangeOptions{next, {Prefix: prefix, Revision: first.Revision}} {
			if _, err := store.Range(t.Context(), opts); !errors.Is(err, kv.ErrCompacted) {
				t.Errorf("compacted: %v", err)
			}
		}
	})
}

func TestReadOnly(t *testing.T) {
	store := newUpstream("configmaps", true).newStore()
	if _, err := store.Put(t.Context(), prefix+"a/x", nil, kv.PutOptions{}); err == nil {
		t.Error("put succeeds")
	}
	if _, err := store.Delete(t.Context(), prefix+"a/x", 1); err == nil {
		t.Error("delete succeeds")
	}
}

func TestCallsEndWithRun(t *testing.T) {
	for _, isProtobuf := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			u := newUpstream("configmaps", isProtobuf)
			store := u.newStore()
			running := make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { running <- store.Run(ctx) }()
			watch := store.Watch(t.Context(), prefix, 1)
			u.put("a/x", "1")
			expect(t, watch, "2[create a/x] 2")
			u.respond = func(request *http.Request) *http.Response {
				<-request.Context().Done()
				time.Sleep(time.Second)
				return nil
			}
			results := make(chan error)
			go func() { _, err := store.Revision(t.Context()); results <- err }()
			go func() { _, err := store.Range(t.Context(), kv.RangeOptions{Prefix: prefix}); results <- err }()
			synctest.Wait()
			began := time.Now()
			cancel()
			if err := <-running; err != nil || time.Since(began) != time.Second {
				t.Errorf("Run returns %v after %v, before its request has ended", err, time.Since(began))
			}
			if response := <-watch; !errors.Is(response.Err, kv.ErrClosed) {
				t.Error(response)
			}
			_, err := store.Range(t.Context(), kv.RangeOptions{Prefix: prefix})
			for _, err := range []error{<-results, <-results, err, store.Health(t.Context()), (<-store.Watch(t.Context(), prefix, 1)).Err} {
				if !errors.Is(err, kv.ErrClosed) {
					t.Errorf("after Run: %v", err)
				}
			}
		})
	}
}

// TestRevisionIsShared checks that calls during a read of the revision share one read that begins after it.
func TestRevisionIsShared(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, u *upstream, store *relay.Store) {
		hold := make(chan struct{})
		u.respond = func(*http.Request) *http.Response { <-hold; return nil }
		results := make(chan int64)
		read := func() {
			revision, err := store.Revision(t.Context())
			if err != nil {
				t.Error(err)
			}
			results <- revision
		}
		go read()
		synctest.Wait()
		for range 20 {
			go read()
		}
		synctest.Wait()
		revision := u.elsewhere()
		close(hold)
		for range 21 {
			if got := <-results; got != revision {
				t.Errorf("got revision %d, want %d", got, revision)
			}
		}
		if n := u.count(""); n != 2 {
			t.Errorf("got %d requests, want 2", n)
		}
	})
}

// TestRefusals checks the errors for responses that are not lists of ConfigMaps.
func TestRefusals(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, u *upstream, store *relay.Store) {
		responseOf := func(code int, contentType, body string) *http.Response {
			response := u.response(code, io.NopCloser(strings.NewReader(body)))
			response.Header.Set("Content-Type", contentType)
			return response
		}
		items := func(items ...change) string {
			var encoded [][]byte
			for _, c := range items {
				encoded = append(encoded, u.item(c))
			}
			return string(u.encodeList(wire.ListMeta{Revision: 9}, encoded))
		}
		good := items(change{key: "a/x", data: "1", revision: 3})
		for _, c := range []struct {
			want     string
			response *http.Response
		}{
			{"no", u.status(http.StatusForbidden, metav1.StatusReasonForbidden)},
			{"Bad Gateway", responseOf(http.StatusBadGateway, "text/html", "<html>")},
			{`"text/html"`, responseOf(http.StatusOK, "text/html", "<html>")},
			{"malformed", responseOf(http.StatusOK, u.mediaType(), "<html>")},
			{"malformed", responseOf(http.StatusOK, u.mediaType(), "")},
			{"malformed", responseOf(http.StatusOK, u.mediaType(), good+"x")},
			{"is not a positive number", responseOf(http.StatusOK, u.mediaType(), strings.Replace(good, "9", "x", 1))},
			{"is not a positive number", responseOf(http.StatusOK, u.mediaType(), strings.Replace(good, "3", "-", 1))},
			{"twice", responseOf(http.StatusOK, u.mediaType(), items(change{key: "a/x", revision: 3}, change{key: "a/x", revision: 4}))},
			{"malformed", responseOf(http.StatusOK, u.mediaType(), items(change{key: "/x", revision: 3}))},
			{"malformed", responseOf(http.StatusOK, u.mediaType(), items(change{key: "a/", revision: 3}))},
			{"malformed", responseOf(http.StatusOK, u.mediaType(), items(change{key: "a/b/c", revision: 3}))},
		} {
			u.respond = func(*http.Request) *http.Response { return c.response }
			if _, err := store.Range(t.Context(), kv.RangeOptions{Prefix: prefix}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
		for limit, ok := range map[int64]bool{1: false, 2: true} {
			body := items(change{key: "a/x", revision: 3}, change{key: "a/y", revision: 4})
			u.respond = func(*http.Request) *http.Response { return responseOf(http.StatusOK, u.mediaType(), body) }
			if _, err := store.Range(t.Context(), kv.RangeOptions{Prefix: prefix, Limit: limit}); (err == nil) != ok {
				t.Errorf("two objects in a page of %d: got error %v, want success %v", limit, err, ok)
			}
		}
	})
}

// TestRestore checks that a list at a lower revision than before counts as a restore of the upstream.
func TestRestore(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, u *upstream, store *relay.Store) {
		old := u.put("a/x", "1")
		u.put("a/x", "2")
		watch := store.Watch(t.Context(), prefix, old)
		last := u.put("a/x", "3")
		synctest.Wait()
		u.locked(func() { u.revision, u.log = old, u.log[:1] })
		if n := store.Replacements(); n != 0 {
			t.Errorf("got %d replacements before, want 0", n)
		}
		if revision, err := store.Revision(t.Context()); revision != old || err != nil {
			t.Errorf("got revision %d and error %v, want %d", revision, err, old)
		}
		if n, revision := store.Replacements(), store.ReplacedRevision(); n != 1 || revision != last {
			t.Errorf("%d replacements, up to %d", n, revision)
		}
		for response := range watch {
			if response.Err != nil && !errors.Is(response.Err, kv.ErrReplaced) {
				t.Error(response.Err)
			}
		}
		if _, err := store.Range(t.Context(), kv.RangeOptions{Prefix: prefix}); err != nil || store.Replacements() != 1 {
			t.Errorf("%d replacements, %v", store.Replacements(), err)
		}
	})
}

// TestRestoreBehindAWatch restores upstream and cuts watches: the next watch finds out.
func TestRestoreBehindAWatch(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, u *upstream, store *relay.Store) {
		old := u.put("a/x", "1")
		revision := u.put("a/x", "2")
		watch := store.Watch(t.Context(), prefix, old)
		expect(t, watch, fmt.Sprintf("%d[update a/x] %d", revision, revision))
		u.restore(old)
		if got := receive(t, watch); !strings.Contains(got, "upstream ended the watch") {
			t.Error(got)
		}
		if response := <-store.Watch(t.Context(), prefix, revision); !errors.Is(response.Err, kv.ErrReplaced) {
			t.Error(response)
		}
	})
}

// TestRefused checks that an upstream that does not serve the resource differs from one that does not respond.
func TestRefused(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, u *upstream, store *relay.Store) {
		check := func(want bool) {
			t.Helper()
			_, err := store.Revision(t.Context())
			if store.Refused() != want {
				t.Errorf("got Refused %v after error %v, want %v", !want, err, want)
			}
		}
		send := func(code int, mediaType string) {
			u.locked(func() {
				u.respond = func(*http.Request) *http.Response {
					return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {mediaType}}, Body: io.NopCloser(strings.NewReader("404 page not found"))}
				}
			})
		}
		fail := func(code int) { send(code, "text/plain") }
		check(false)
		fail(http.StatusServiceUnavailable)
		check(false)
		for _, code := range []int{http.StatusNotFound, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotAcceptable} {
			fail(code)
			check(true)
			fail(http.StatusTooManyRequests)
			check(true)
			u.locked(func() { u.respond = nil })
			check(false)
		}
		for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf, "text/html"} {
			if mediaType != u.mediaType() {
				send(http.StatusOK, mediaType)
				check(mediaType != "text/html")
				u.locked(func() { u.respond = nil })
				check(false)
			}
		}
	})
}

// TestRefusedWatches checks that an upstream that lists a resource but refuses watches counts as refusing the
// resource.
func TestRefusedWatches(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, u *upstream, store *relay.Store) {
		u.respond = func(request *http.Request) *http.Response {
			if request.URL.Query().Get("watch") == "" {
				return nil
			}
			return u.status(http.StatusForbidden, metav1.StatusReasonForbidden)
		}
		for range 2 {
			if response := <-store.Watch(t.Context(), prefix, 1); response.Err == nil {
				t.Fatal("the watch opened, want an error")
			}
			if err := store.Health(t.Context()); !store.Refused() || !relay.IsRefusal(err) {
				t.Errorf("refused %v, %v", store.Refused(), err)
			}
		}
		u.locked(func() { u.respond = nil })
		watch := store.Watch(t.Context(), prefix, 1)
		u.put("a/x", "1")
		expect(t, watch, "2[create a/x] 2")
		if err := store.Health(t.Context()); store.Refused() || err != nil {
			t.Errorf("with an open watch: got Refused %v and error %v", store.Refused(), err)
		}
	})
}
