package costs

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestNothingIsLostOrCountedTwice charges from many goroutines that keep their accounts, while the ledger
// removes accounts all the time.
func TestNothingIsLostOrCountedTwice(t *testing.T) {
	t.Run("every sweep removes all accounts", func(t *testing.T) {
		l := New(boundless())
		stop, swept := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(swept)
			for {
				select {
				case <-stop:
					return
				default:
					l.mu.Lock()
					l.sweepLocked(time.Now(), true)
					l.mu.Unlock()
				}
			}
		}()
		chargeConcurrently(l, func(int) {})
		close(stop)
		<-swept
		checkCharged(t, l)
	})
	// A sweep visits up to maxAccounts accounts and new callers wait for it, so the number of sweeps is bounded here.
	t.Run("accounts are removed because there are too many", func(t *testing.T) {
		l := New(boundless())
		chargeConcurrently(l, func(i int) {
			if i%300 == 0 {
				l.Sweep()
			}
		})
		checkCharged(t, l)
	})
}

const chargingGoroutines, chargesOfEach = 8, 6_000

// chargeConcurrently charges l from many goroutines, for callers that come back and for callers that come once. Each
// goroutine calls between with the number of its next charge.
func chargeConcurrently(l *Ledger, between func(i int)) {
	var running sync.WaitGroup
	for g := range chargingGoroutines {
		running.Go(func() {
			kept := l.Account(Key{User: fmt.Sprint("kept", g%2), Verb: "watch"})
			for i := range chargesOfEach {
				kept = kept.Add(Usage{Requests: 1, Bytes: 7})
				if i%2 == 0 {
					l.Account(Key{User: fmt.Sprint("u", g, i), Verb: "get"}).Add(Usage{Requests: 1, Events: 1})
				}
				between(i)
			}
		})
	}
	running.Wait()
}

// checkCharged compares l with the charges of chargeConcurrently.
func checkCharged(t *testing.T, l *Ledger) {
	const total = chargingGoroutines * chargesOfEach
	want := map[string]Usage{
		"watch": {Requests: total, Bytes: 7 * total},
		"get":   {Requests: total / 2, Events: total / 2},
	}
	got := make(map[string]Usage)
	for _, row := range l.Report(Query{By: ByVerb, Window: SinceStart}).Rows {
		got[row.Verb] = row.Used
	}
	if !maps.Equal(got, want) {
		t.Errorf("charged %v, want %v", got, want)
	}
	checkMemory(t, l)
}

// TestWindowsAge checks that charges leave a window when its time is over, but never the total since the start.
func TestWindowsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(boundless())
		ctx, cancel := context.WithCancel(t.Context())
		go l.Run(ctx)
		defer synctest.Wait()
		defer cancel()
		l.Account(Key{User: "a"}).Add(Usage{Requests: 1})
		seen := func(w Window) int64 {
			r := l.Report(Query{Window: w})
			if age := r.To.Sub(r.From); w == LastMinute && age > 71*time.Second || w == LastFive && age > 361*time.Second {
				t.Errorf("%v goes back %v", w, age)
			}
			return r.Total[Requests]
		}
		for _, at := range []struct {
			after        time.Duration
			minute, five int64
		}{{0, 1, 1}, {55 * time.Second, 1, 1}, {75 * time.Second, 0, 1}, {295 * time.Second, 0, 1}, {365 * time.Second, 0, 0}} {
			time.Sleep(at.after - time.Since(l.all.from))
			if got := [...]int64{seen(LastMinute), seen(LastFive), seen(SinceStart)}; got != [...]int64{at.minute, at.five, 1} {
				t.Errorf("after %v: %v", at.after, got)
			}
		}
		if len(l.accounts) != 0 {
			t.Errorf("%d accounts, without requests, want 0", len(l.accounts))
		}
	})
}

// TestNoMoreIsGivenOutThanWasUsed checks that if more CPU time was measured than the process has used, all charges
// are reduced in proportion.
func TestNoMoreIsGivenOutThanWasUsed(t *testing.T) {
	var used time.Duration
	l := New(func() time.Duration { return used })
	charge := func(user string, d time.Duration) {
		l.Account(Key{User: user}).Add(Usage{CPU: int64(d), Requests: 1})
	}
	cpuOf := func() map[string]time.Duration {
		all := make(map[string]time.Duration)
		for _, row := range l.Report(Query{By: ByUser, Window: SinceStart}).Rows {
			all[row.User] = row.Used.Time().Round(time.Millisecond)
		}
		return all
	}
	used = 3 * time.Second
	charge("a", 4*time.Second)
	charge("b", 2*time.Second)
	if got := cpuOf(); got["a"] != 2*time.Second || got["b"] != time.Second {
		t.Fatal(got)
	}
	used += 10 * time.Second
	charge("a", time.Second)
	if got := cpuOf(); got["a"] != 3*time.Second {
		t.Fatal("less was measured than used, and yet:", got)
	}
	charge("b", 5*time.Second) // little of the earlier CPU time can be b's
	if got := cpuOf(); got["b"] != 2*time.Second {
		t.Fatal(got)
	}
	if r := l.Report(Query{Window: SinceStart}); r.Process.CPUSeconds != 13 {
		t.Fatal(r.Process)
	}
}

// TestHostileNames checks that names of any length and content are truncated and become valid JSON.
func TestHostileNames(t *testing.T) {
	l := New(boundless())
	long := strings.Repeat("<script>\xff\x00\"", 1000)
	l.Account(Key{User: long, UserAgent: long, Resource: long, Verb: long}).Add(Usage{Requests: 1})
	w := httptest.NewRecorder()
	l.ServeHTTP(w, httptest.NewRequest("GET", Path, nil))
	var d Report
	if err := json.Unmarshal(w.Body.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	row := d.Rows[0]
	if len(row.User) > 3*maxUser || len(row.UserAgent) > 3*maxAgent || len(row.Resource) > 3*maxResource || !strings.HasPrefix(row.UserAgent, "<script>\ufffd\x00\"<") {
		t.Fatalf("row %+v, want shorter fields, with invalid UTF-8 replaced", row)
	}
	if strings.Contains(w.Body.String(), "<") {
		t.Fatal("the JSON is not fit for a page: " + w.Body.String())
	}
}

func TestServeHTTP(t *testing.T) {
	l := New(boundless())
	l.Account(Key{User: "a", UserAgent: "x/1", Resource: "deployments.apps/scale", Verb: "get"}).
		Add(Usage{CPU: 2e6, Bytes: 10, Requests: 1})
	l.Account(Key{User: "b", UserAgent: "x/1", Resource: "pods", Verb: "watch"}).Add(Usage{CPU: 1e6, Bytes: 20, Events: 3})
	send := func(method, target string) (int, string) {
		w := httptest.NewRecorder()
		l.ServeHTTP(w, httptest.NewRequest(method, target, nil))
		return w.Code, w.Body.String()
	}
	for target, want := range map[string]string{
		Path:                         `[{"user":"a","userAgent":"x/1","resource":"deployments.apps/scale","verb":"get","used":{"cpuSeconds":0.002,"bytes":10,"requests":1,"events":0},"missed":{"cpuSeconds":0,"bytes":0,"requests":0,"events":0}},{"user":"b","userAgent":"x/1","resource":"pods","verb":"watch","used":{"cpuSeconds":0.001,"bytes":20,"requests":0,"events":3},"missed":{"cpuSeconds":0,"bytes":0,"requests":0,"events":0}}]`,
		Path + "?by=agent&window=5m": `[{"userAgent":"x/1","used":{"cpuSeconds":0.003,"bytes":30,"requests":1,"events":3},"missed":{"cpuSeconds":0,"bytes":0,"requests":0,"events":0}}]`,
		Path + "?by=user&sort=events&limit=1&window=start": `[{"user":"b","used":{"cpuSeconds":0.001,"bytes":20,"requests":0,"events":3},"missed":{"cpuSeconds":0,"bytes":0,"requests":0,"events":0}}]`,
	} {
		var d Report
		code, body := send("GET", target)
		if err := json.Unmarshal([]byte(body), &d); code != 200 || err != nil {
			t.Fatal(code, body, err)
		}
		if rows, _ := json.Marshal(d.Rows); string(rows) != want {
			t.Errorf("%s:\n%s, want\n%s", target, rows, want)
		}
	}
	for target, want := range map[string]string{
		Path + "?window=1h": `costs: window must be one of [\"1m\" \"5m\" \"start\"], not \"1h\"`,
		Path + "?sort=x":    `costs: sort must be one of`,
		Path + "?limit=-1":  `costs: limit must be a number of rows, not \"-1\"`,
	} {
		if code, body := send("GET", target); code != 400 || !strings.Contains(body, want) || !strings.Contains(body, `"kind":"Status"`) {
			t.Errorf("%s: got %d %s, want 400 and %q", target, code, body, want)
		}
	}
	if code, body := send("POST", Path); code != 405 || !strings.Contains(body, `"reason":"MethodNotAllowed"`) {
		t.Errorf("POST: got %d %s, want 405", code, body)
	}
}

// BenchmarkAdd measures the cost of the ledger for a request, apart from the clock.
func BenchmarkAdd(b *testing.B) {
	l := New(boundless())
	agent := "kubelet/v1.36.3 (linux/amd64) kubernetes/abcdef0"
	for i := range 2000 {
		l.Account(Key{User: fmt.Sprint("system:node:node-", i), UserAgent: agent, Resource: "pods", Verb: "list"})
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			l.Account(Key{User: "system:node:node-7", UserAgent: agent, Resource: "pods", Verb: "list"}).Add(Usage{CPU: 1000, Bytes: 5000, Requests: 1})
		}
	})
}

// BenchmarkSweep measures a sweep of the ledger with 2,000 active clients.
func BenchmarkSweep(b *testing.B) {
	l := New(boundless())
	var accounts []*Account
	for i := range 2000 {
		accounts = append(accounts, l.Account(Key{User: fmt.Sprint("system:node:node-", i), UserAgent: "kubelet", Resource: "pods", Verb: "list"}))
	}
	for b.Loop() {
		for _, a := range accounts {
			a.Add(Usage{Requests: 1})
		}
		l.Sweep()
	}
}
