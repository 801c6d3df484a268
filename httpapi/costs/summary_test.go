package costs

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// boundless is a process that has used more CPU time than all charges.
func boundless() func() time.Duration {
	used := time.Duration(0)
	return func() time.Duration { used += 1000 * time.Hour; return used }
}

// streams are patterns of load. Each returns the caller of the i-th request.
func streams(random *rand.Rand) map[string]func(i int) Key {
	zipf := rand.NewZipf(random, 1.1, 1, 1<<20)
	caller := func(agent string) Key {
		return Key{User: "u" + agent[:1], UserAgent: agent, Resource: "pods", Verb: "list"}
	}
	return map[string]func(i int) Key{
		"zipf":    func(int) Key { return caller(fmt.Sprint(zipf.Uint64())) },
		"uniform": func(int) Key { return caller(fmt.Sprint(random.IntN(5000))) },
		"few":     func(int) Key { return caller(fmt.Sprint(random.IntN(maxEntries))) },
		"unique beside heavy": func(i int) Key {
			if i%20 == 0 {
				return caller(fmt.Sprint("heavy", i/20%10))
			}
			return caller(fmt.Sprint(i))
		},
		// Each comes back when it has just been dropped.
		"rounds": func(i int) Key { return caller(fmt.Sprint(i % (maxEntries + 1))) },
	}
}

// TestBoundsHold compares reports with exact counts. A row must not exceed the charges, and the charges must not
// exceed the row plus its possible error. The error must stay within the promised part of the total.
func TestBoundsHold(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for name := range streams(rand.New(rand.NewPCG(seed, 0))) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { compareWithExact(t, seed, name) })
		})
	}
}

const charged = 60_000

func compareWithExact(t *testing.T, seed uint64, name string) {
	random := rand.New(rand.NewPCG(seed, 1))
	next := streams(random)[name]
	l := New(boundless())
	exact := make(map[Key]*Usage)
	var total Usage
	for i := range charged {
		c := next(i)
		u := Usage{CPU: random.Int64N(1000), Bytes: int64(math.Exp(random.Float64() * 15)), Requests: 1, Events: random.Int64N(3)}
		key := l.Account(c).Add(u).Key()
		if exact[key] == nil {
			exact[key] = new(Usage)
		}
		exact[key].add(&u)
		total.add(&u)
		if i%100 == 0 {
			time.Sleep(100 * time.Millisecond) // a minute in all
		}
		if i%10_000 == 0 {
			l.Sweep()
		}
	}
	for window := range lastWindow {
		r := l.Report(Query{Window: window})
		if r.Total != total {
			t.Fatalf("%v: the total is %v, want %v", window, r.Total, total)
		}
		rows := make(map[Key]Row)
		for _, row := range r.Rows {
			rows[row.Key] = row
		}
		for key, want := range exact {
			row, ok := rows[key]
			if !ok {
				row.Missed = r.Missed
			}
			for k := range kinds {
				used, missed := row.Used[k], row.Missed[k]
				if used > want[k] || want[k] > used+missed {
					t.Fatalf("%v: %v of %v: between %d and %d, is %d", window, k, key, used, used+missed, want[k])
				}
				if bound := total[k] / (keep + 1); missed > bound {
					t.Fatalf("%v: %v of %v: %d may be missed, promised is %d", window, k, key, missed, bound)
				}
				if name == "few" && missed > 0 {
					t.Fatalf("%v: %v of %v: %d may be missed of %d names", window, k, key, missed, len(exact))
				}
			}
		}
		if most := maxEntries * len(l.short.periods()); len(r.Rows) > most {
			t.Fatalf("%d rows", len(r.Rows))
		}
	}
	checkMemory(t, l)
}

// checkMemory fails if more is kept than may be.
func checkMemory(t *testing.T, l *Ledger) {
	if len(l.accounts) > maxAccounts {
		t.Fatalf("%d accounts", len(l.accounts))
	}
	periods := append(append(l.short.periods(), l.long.periods()...), l.all)
	if most := 7 + 6 + 1; len(periods) > most {
		t.Fatalf("%d periods, want %d at most", len(periods), most)
	}
	for _, p := range periods {
		for d := range p.by {
			if n := len(p.by[d].rows); n > maxEntries {
				t.Fatalf("%v: %d rows", Dimension(d), n)
			}
		}
	}
}

// TestHeavyAreFound checks that each client with a significant part of the total has a row, whatever other clients
// do.
func TestHeavyAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no period ends meanwhile
		l := New(boundless())
		for i := range 300_000 {
			agent := fmt.Sprintf("%x", rand.Uint64())
			if i%50 == 0 {
				agent = "heavy"
			}
			l.Account(Key{UserAgent: agent, Resource: "pods", Verb: "get"}).Add(Usage{Requests: 1})
		}
		for _, by := range []Dimension{ByClient, ByAgent} {
			first := l.Report(Query{By: by, Sort: Requests}).Rows[0]
			if first.UserAgent != "heavy" || first.Used[Requests]+first.Missed[Requests] < 6000 || first.Used[Requests] > 6000 {
				t.Errorf("by %v: %+v", by, first)
			}
		}
		if row := l.Report(Query{By: ByVerb}).Rows[0]; row.Verb != "get" || row.Used[Requests] != 300_000 || row.Missed != (Usage{}) {
			t.Errorf("by verb: %+v", row)
		}
		checkMemory(t, l)
	})
}
