package relay_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/internal/registry/wire"
	"github.com/larder-io/larder/internal/relay"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

func TestWatch(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, u *upstream, store *relay.Store) {
		u.put("a/x", "1") // 2
		u.put("b/y", "1")
		watch := store.Watch(t.Context(), prefix, 2)
		expect(t, watch, "3[create b/y] 3")
		u.put("a/x", "2")
		expect(t, watch, "4[update a/x] 4")
		u.remove("b/y")
		expect(t, watch, "5[delete b/y] 5")
		u.elsewhere()
		silent(t, watch)
		u.bookmark()
		expect(t, watch, "6")
		revision := u.put("b/y", "3")
		response := <-watch
		if want := u.value(change{revision: revision, key: "b/y", data: "3"}); string(response.Batches[0].Events[0].Value) != want {
			t.Errorf("value %q, want %q", response.Batches[0].Events[0].Value, want)
		}
		synctest.Wait()
		u.cut()
		expect(t, watch, "relay: watch configmaps: upstream ended the watch", "closed")
	})
}

func TestWatchEnds(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, u *upstream, store *relay.Store) {
		u.put("a/x", "1")
		last := u.put("a/x", "1")
		u.locked(func() { u.compacted = last })
		compacted := func(what string, watch <-chan kv.WatchResponse) {
			t.Helper()
			if response := <-watch; !errors.Is(response.Err, kv.ErrCompacted) {
				t.Errorf("%s: got %+v, want %v", what, response, kv.ErrCompacted)
			}
			expect(t, watch, "closed")
		}
		compacted("compacted", store.Watch(t.Context(), prefix, last-1))
		compacted("from the beginning", store.Watch(t.Context(), prefix, 0))
		stream := func(frames ...[]byte) {
			u.respond = func(r *http.Request) *http.Response {
				if !strings.Contains(r.URL.RawQuery, "watch=true") {
					return nil
				}
				return u.response(http.StatusOK, io.NopCloser(strings.NewReader(string(joined(frames)))))
			}
		}
		stream(u.statusWriter().AppendFrame(nil, "ERROR", u.statusObject(http.StatusGone, metav1.StatusReasonExpired)))
		compacted("ERROR event", store.Watch(t.Context(), prefix, last))
		old := u.writer.AppendFrame(nil, "MODIFIED", u.item(change{last, "a/x", "1", false}))
		stream(old)
		compacted("old event", store.Watch(t.Context(), prefix, last))
		for want, frame := range map[string][]byte{
			"want 5":           u.statusWriter().AppendFrame(nil, "ERROR", u.statusObject(500, "want 5")),
			"event type":       u.writer.AppendFrame(nil, "OTHER", u.item(change{last, "a/x", "1", false})),
			"malformed":        u.statusWriter().AppendFrame(nil, "ADDED", u.statusObject(500, "")),
			"unexpected EOF":   old[:len(old)-3],
			"ended the watch":  nil,
			"malformed: it ":   wire.JSON(wire.Kind{APIVersion: "v1", Kind: "Secret"}).AppendFrame(nil, "ADDED", []byte(`{"metadata":{"name":"x"}}`)),
			"not a positive n": u.writer.AppendFrame(nil, "BOOKMARK", u.item(change{revision: -1})),
		} {
			stream(frame)
			if got := receive(t, store.Watch(t.Context(), prefix, last)); !strings.Contains(got, want) && want != "want 5" && want != "malformed: it " {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	})
}

func joined(frames [][]byte) (all []byte) {
	for _, frame := range frames {
		all = append(all, frame...)
	}
	return all
}

// TestRedefinedObjects loads again only when the upstream has ended the watch before its time.
func TestRedefinedObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream("configmaps", false)
		u.redefined = true
		store := u.open(t)
		watch := store.Watch(t.Context(), prefix, 1)
		synctest.Wait()
		u.cut()
		if response := <-watch; !errors.Is(response.Err, kv.ErrCompacted) {
			t.Errorf("a watch that was cut ends with %+v", response)
		}
		watch = store.Watch(t.Context(), prefix, 1)
		for range 10 { // minutes, with bookmarks
			time.Sleep(time.Minute)
			u.bookmark()
		}
		for response := range watch {
			if errors.Is(response.Err, kv.ErrCompacted) {
				t.Errorf("a watch whose time is up ends with %v", response.Err)
			}
		}
		// Watches get from five to ten minutes, so one of many that are cut after five has time left.
		early := 0
		for range 10 {
			watch = store.Watch(t.Context(), prefix, 1)
			for range 4 {
				time.Sleep(time.Minute)
				u.bookmark()
			}
			time.Sleep(55 * time.Second)
			u.cut()
			for response := range watch {
				if errors.Is(response.Err, kv.ErrCompacted) {
					early++
				}
			}
		}
		if early == 0 {
			t.Error("no watch that was cut after five minutes makes the reader load again")
		}
	})
}

// TestSilentWatch ends a watch that has no event and no bookmark.
func TestSilentWatch(t *testing.T) {
	for _, isProtobuf := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			u := newUpstream("configmaps", isProtobuf)
			store := u.open(t)
			watch := store.Watch(t.Context(), prefix, 1)
			time.Sleep(80 * time.Second)
			u.put("a/x", "1")
			time.Sleep(80 * time.Second)
			u.bookmark()
			synctest.Wait()
			u.elsewhere()
			time.Sleep(80 * time.Second)
			expect(t, watch, "2[create a/x] 2")
			silent(t, watch)
			if got := store.Silence(); got != 80*time.Second { // the bookmark counts, although it is of the revision before
				t.Errorf("silence of %v", got)
			}
			time.Sleep(10 * time.Second)
			expect(t, watch, "relay: watch configmaps: upstream sent nothing in 1m30s", "closed")
			time.Sleep(time.Minute)
			watch = store.Watch(t.Context(), prefix, 2)
			if synctest.Wait(); store.Silence() != 150*time.Second {
				t.Errorf("silence of %v after the watch after a silent one was opened", store.Silence())
			}
			u.bookmark()
			expect(t, watch, "3")
			u.cut()
			expect(t, watch, "relay: watch configmaps: upstream ended the watch", "closed")
			u.elsewhere()
			time.Sleep(time.Minute)
			store.Watch(t.Context(), prefix, 3)
			if synctest.Wait(); store.Silence() != 0 {
				t.Errorf("silence of %v after a watch was opened", store.Silence())
			}
		})
	}
}

// TestQuietUpstream checks an upstream that sends no bookmarks while its revision stays the same. A watch that has
// provably sent all events does not count as silent.
func TestQuietUpstream(t *testing.T) {
	for _, isProtobuf := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			u := newUpstream("configmaps", isProtobuf)
			store := u.open(t)
			watch := store.Watch(t.Context(), prefix, 1)
			after := func(d, want time.Duration, prove func() error) {
				t.Helper()
				time.Sleep(d)
				if err := prove(); err != nil {
					t.Fatal(err)
				}
				if synctest.Wait(); store.Silence() != want {
					t.Errorf("silence of %v, want %v", store.Silence(), want)
				}
			}
			health := func() error { return store.Health(t.Context()) }
			for range 4 {
				after(time.Minute, 0, health)
			}
			silent(t, watch)
			u.elsewhere()
			after(20*time.Second, 20*time.Second, health)
			after(0, 20*time.Second, func() error { return store.RequestProgress(t.Context()) })
			expect(t, watch, "2")
			after(0, 0, health)
			u.cut()
			expect(t, watch, "relay: watch configmaps: upstream ended the watch", "closed")
			u.elsewhere()
			after(time.Minute, 0, func() error { store.Watch(t.Context(), prefix, 2); return nil }) // after one that was proven
		})
	}
}

// TestWatchesThatAreCut checks a proxy in front of the upstream that delays events and ends watches every minute.
func TestWatchesThatAreCut(t *testing.T) {
	for _, isProtobuf := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			u := newUpstream("configmaps", isProtobuf)
			store := u.open(t)
			u.elsewhere()
			for i := range 5 {
				watch := store.Watch(t.Context(), prefix, 1)
				if synctest.Wait(); store.Silence() != time.Duration(i)*time.Minute {
					t.Errorf("silence of %v after %d watches", store.Silence(), i)
				}
				time.Sleep(time.Minute)
				u.cut()
				expect(t, watch, "relay: watch configmaps: upstream ended the watch", "closed")
			}
			last := u.put("a/x", "1")
			u.elsewhere()
			frame := u.writer.AppendFrame(nil, "ADDED", u.item(change{last, "a/x", "1", true}))
			u.respond = func(r *http.Request) *http.Response {
				if !strings.Contains(r.URL.RawQuery, "watch=true") {
					return nil
				}
				return u.response(http.StatusOK, io.NopCloser(strings.NewReader(string(frame))))
			}
			for range 20 { // the event and the end may come together
				time.Sleep(time.Second)
				for range store.Watch(t.Context(), prefix, 1) {
				}
				if store.Silence() != 0 {
					t.Errorf("silence of %v after an event", store.Silence())
				}
			}
		})
	}
}

// TestWatchTimeout ends after some minutes, with a bookmark.
func TestWatchTimeout(t *testing.T) {
	for _, isProtobuf := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			u := newUpstream("configmaps", isProtobuf)
			store := u.open(t)
			watch, began := store.Watch(t.Context(), prefix, 1), time.Now()
			go func() {
				for range 12 {
					time.Sleep(time.Minute)
					u.elsewhere()
					u.bookmark()
				}
			}()
			var last kv.WatchResponse
			for response := range watch {
				last = response
			}
			if took := time.Since(began); took < 5*time.Minute || took > 10*time.Minute || last.Err == nil {
				t.Errorf("the watch ends after %v with %v", took, last.Err)
			}
			time.Sleep(10 * time.Minute)
		})
	}
}

// TestLateEvents lets an object change in a revision that was already delivered.
func TestLateEvents(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, u *upstream, store *relay.Store) {
		u.put("a/1", "1")
		u.put("a/2", "1")
		watch := store.Watch(t.Context(), prefix, 3)
		u.remove("a/1", "a/2")
		if response := <-watch; response.Err == nil {
			response = <-watch
			if !errors.Is(response.Err, kv.ErrCompacted) {
				t.Error(text(response))
			}
		} else if !errors.Is(response.Err, kv.ErrCompacted) {
			t.Error(text(response))
		}
		again := store.Watch(t.Context(), prefix, 4) // the reader has loaded again
		u.put("a/1", "1")
		expect(t, again, "5[create a/1] 5")
	})
}

// TestLostPlaces checks that an upstream that expires each watch, at its opening or soon after, is not asked without
// pauses. After a watch that has lasted, there is no pause.
func TestLostPlaces(t *testing.T) {
	for name, at := range map[string]string{"opening": "gone", "event": "late", "end": "ended"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := newUpstream("configmaps", false)
				u.redefined = at == "ended"
				revision := u.put("a/x", "1")
				var lists atomic.Int64
				var lasts atomic.Bool
				u.respond = func(r *http.Request) *http.Response {
					time.Sleep(time.Millisecond)
					switch watches := strings.Contains(r.URL.RawQuery, "watch=true"); {
					case watches && lasts.Load():
						return nil
					case watches && at == "gone":
						return u.status(http.StatusGone, metav1.StatusReasonExpired)
					case watches && at == "late":
						late := u.writer.AppendFrame(nil, "MODIFIED", u.item(change{revision, "a/x", "1", false}))
						return u.response(http.StatusOK, io.NopCloser(strings.NewReader(string(late))))
					case watches:
						return u.response(http.StatusOK, http.NoBody)
					}
					lists.Add(1)
					return nil
				}
				store := u.open(t)
				tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: prefix, Heartbeat: time.Hour})
				kvtest.RunUntilEnd(t, tail.Run)
				time.Sleep(time.Minute)
				if n := lists.Load(); n < 5 || n > 100 {
					t.Errorf("%d lists in a minute", n)
				}
				lasts.Store(true)
				time.Sleep(time.Minute)
				u.cut()
				lists.Store(0)
				time.Sleep(100 * time.Millisecond)
				if lists.Load() == 0 {
					t.Error("the watch after one that has lasted waits")
				}
			})
		})
	}
}

// TestResumeAfterDeletion resumes after a deletion.
func TestResumeAfterDeletion(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, u *upstream, store *relay.Store) {
		u.put("a/1", "1")
		watch := store.Watch(t.Context(), prefix, 2)
		u.remove("a/1")
		expect(t, watch, "3[delete a/1] 3")
		u.cut()
		expect(t, watch, "relay: watch configmaps: upstream ended the watch", "closed")
		watch = store.Watch(t.Context(), prefix, 3)
		u.put("a/1", "1")
		expect(t, watch, "4[create a/1] 4")
	})
}

func TestProgress(t *testing.T) {
	for _, isProtobuf := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			u := newUpstream("configmaps", isProtobuf)
			store := u.open(t)
			watch := store.Watch(t.Context(), prefix, 1)
			u.put("a/x", "1")
			expect(t, watch, "2[create a/x] 2")
			u.elsewhere()
			for range 5 {
				if err := store.RequestProgress(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			expect(t, watch, "3")
			if took := time.Since(began); took != time.Second {
				t.Errorf("progress after %v", took)
			}
			if err := store.RequestProgress(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			u.elsewhere()
			if err := store.RequestProgress(t.Context()); err != nil { // starts a new probe
				t.Fatal(err)
			}
			expect(t, watch, "4")
			time.Sleep(10 * time.Second)
			if n := u.count("timeoutSeconds=3&"); n > 4 {
				t.Errorf("%d probes", n)
			}
		})
	}
}

// TestProgressOfALaggingWatch checks that no progress is proved before the watch has delivered everything that the
// probe has seen.
func TestProgressOfALaggingWatch(t *testing.T) {
	for _, isProtobuf := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			u := newUpstream("configmaps", isProtobuf)
			store := u.open(t)
			watch := store.Watch(t.Context(), prefix, 1)
			synctest.Wait()
			u.respond = func(r *http.Request) *http.Response { // a replica that does not lag
				if !strings.Contains(r.URL.RawQuery, "timeoutSeconds=3&") {
					return nil
				}
				ahead := newUpstream(u.resource, u.protobuf)
				u.mu.Lock()
				ahead.log, ahead.revision = u.log, u.revision
				u.mu.Unlock()
				return ahead.watch(r.Context(), r.URL.Query())
			}
			u.serve(1)
			u.put("a/x", "1")
			u.elsewhere()
			if err := store.RequestProgress(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			silent(t, watch)
			u.serve(2)
			expect(t, watch, "2[create a/x] 3")
		})
	}
}

// TestBackoff checks that pauses grow while no watch can be opened, and that a pause is as long as upstream says.
func TestBackoff(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, u *upstream, store *relay.Store) {
		u.respond = func(*http.Request) *http.Response { return u.status(http.StatusServiceUnavailable, "") }
		for i := range 20 {
			began := time.Now()
			if response := <-store.Watch(t.Context(), prefix, 1); response.Err == nil {
				t.Fatal("the watch opens")
			}
			if took := time.Since(began); took > 5*time.Second || i > 7 && took < 2500*time.Millisecond {
				t.Errorf("attempt %d took %v", i, took)
			}
		}
		u.respond = func(*http.Request) *http.Response {
			response := u.status(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)
			response.Header.Set("Retry-After", "20")
			return response
		}
		<-store.Watch(t.Context(), prefix, 1)
		began := time.Now()
		u.respond = nil
		watch := store.Watch(t.Context(), prefix, 1)
		u.put("a/x", "1")
		expect(t, watch, "2[create a/x] 2")
		if took := time.Since(began); took < 10*time.Second || took > 20*time.Second {
			t.Errorf("the watch opened after %v", took)
		}
	})
}

// TestOverTheNetwork reads and watches through HTTP/1.1 and HTTP/2.
func TestOverTheNetwork(t *testing.T) {
	for _, isHTTP2 := range []bool{true, false} {
		u := newUpstream("configmaps", isHTTP2)
		server := httptest.NewUnstartedServer(u)
		server.EnableHTTP2 = isHTTP2
		server.StartTLS()
		t.Cleanup(server.Close)
		base, err := url.Parse(server.URL + "/base/")
		if err != nil {
			t.Fatal(err)
		}
		u.client, u.base = server.Client(), base
		store := u.open(t)
		if revision, err := store.Revision(t.Context()); err != nil || revision != 1 {
			t.Fatalf("revision %d, %v", revision, err)
		}
		watch := store.Watch(t.Context(), prefix, 1)
		u.put("a/x", strings.Repeat("1", 100_000))
		if got := text(<-watch); got != "2[create a/x] 2" {
			t.Error(got)
		}
		page, err := store.Range(t.Context(), kv.RangeOptions{Prefix: prefix})
		if err != nil || len(page.Items) != 1 || string(page.Items[0].Value) != u.value(u.log[0]) {
			t.Errorf("list of %d, %v", len(page.Items), err)
		}
		u.cut()
		if got := text(<-watch); !strings.Contains(got, "upstream ended the watch") {
			t.Error(got)
		}
	}
}
