package costs

import (
	"context"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unique"
)

const (
	// mostAccounts is how many accounts there are at most.
	mostAccounts = 4096
	buckets      = 2048

	// interval is how often Run sweeps, and how long the shortest summaries are for.
	interval = 10 * time.Second

	// creditMost bounds the CPU time of the past that may still be given out: a request that
	// ends now may have used it.
	creditMost = time.Second
)

// Config says what a [Ledger] needs of the process.
type Config struct {
	// CPU returns the CPU time that the process has used.
	CPU func() time.Duration
}

// Ledger knows what everybody costs. Its methods may be called by any number of goroutines.
type Ledger struct {
	config Config
	seed   maphash.Seed
	table  [buckets]atomic.Pointer[Account] // only changed with mu held

	mu       sync.Mutex
	accounts int           // guarded by mu
	swept    time.Time     // guarded by mu: when accounts that were not used were last given up
	used     time.Duration // guarded by mu: the CPU time of the process at the last sweep
	credit   time.Duration // guarded by mu: what of it may still be given out
	short    series        // guarded by mu
	long     series        // guarded by mu
	all      *period       // guarded by mu
}

// New returns an empty Ledger, whose time begins now.
func New(config Config) *Ledger {
	now := time.Now()
	l := &Ledger{config: config, seed: maphash.MakeSeed(), swept: now, used: config.CPU(), all: newPeriod(now)}
	l.short = series{length: interval, most: 6, current: newPeriod(now)}
	l.long = series{length: time.Minute, most: 5, current: newPeriod(now)}
	return l
}

// Run keeps the summaries current until ctx ends.
func (l *Ledger) Run(ctx context.Context) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			l.Sweep()
		}
	}
}

// Account returns c's account. It keeps nothing of c.
func (l *Ledger) Account(c Caller) *Account {
	c.cut()
	hash := c.hash(l.seed)
	if a := l.find(hash, &c); a != nil {
		return a
	}
	return l.open(hash, c)
}

// find finds c's account without a lock; nil if there is none.
func (l *Ledger) find(hash uint64, c *Caller) *Account {
	for a := l.table[hash%buckets].Load(); a != nil; a = a.next.Load() {
		if a.is(hash, c) && !a.retired.Load() {
			return a
		}
	}
	return nil
}

// open makes an account for c, unless somebody else just has. If there are too many, all are
// given up: those that are used again come back.
func (l *Ledger) open(hash uint64, c Caller) *Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.find(hash, &c); a != nil {
		return a
	}
	if l.accounts == mostAccounts {
		l.sweepLocked(time.Now(), func(*Account) bool { return false })
	}
	c.User, c.Verb = strings.Clone(c.User), strings.Clone(c.Verb)
	c.Group, c.Resource, c.Subresource = strings.Clone(c.Group), strings.Clone(c.Resource), strings.Clone(c.Subresource)
	c.Agent = append([]byte(nil), c.Agent...)
	a, key := &Account{ledger: l, caller: c, hash: hash, fresh: true}, c.key()
	for d := range dimensions {
		a.keys[d] = unique.Make(key.project(d))
	}
	head := &l.table[hash%buckets]
	a.next.Store(head.Load())
	head.Store(a)
	l.accounts++
	return a
}

// Sweep takes what the accounts have.
func (l *Ledger) Sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepByClockLocked(time.Now())
}

// sweepByClockLocked gives up accounts that were not used for an interval.
func (l *Ledger) sweepByClockLocked(now time.Time) {
	due := now.Sub(l.swept) >= interval
	if due {
		l.swept = now
	}
	l.sweepLocked(now, func(a *Account) bool {
		if !due {
			return true
		}
		stays := a.fresh
		a.fresh = false
		return stays
	})
}

// charge is what an account had.
type charge struct {
	account *Account
	usage   Usage
}

// sweepLocked takes what the accounts have, and gives up those that are not to stay.
func (l *Ledger) sweepLocked(now time.Time, stays func(*Account) bool) {
	var charges []charge
	var sum time.Duration
	for i := range l.table {
		link := &l.table[i]
		for a := link.Load(); a != nil; a = a.next.Load() {
			u := a.take()
			a.fresh = a.fresh || u != Usage{}
			if stays(a) {
				link = &a.next
			} else {
				link.Store(a.next.Load())
				l.accounts--
				a.retired.Store(true)
				rest := a.take()
				u.add(&rest)
			}
			if (u != Usage{}) {
				charges = append(charges, charge{a, u})
				sum += u.Time()
			}
		}
	}
	used := l.config.CPU()
	process := max(0, used-l.used)
	l.used = used
	l.credit += process
	share := 1.0
	if sum > l.credit {
		share = float64(l.credit) / float64(sum)
	}
	given := l.bookLocked(charges, share, process)
	l.credit = min(max(0, l.credit-given), creditMost)
	l.short.roll(now)
	l.long.roll(now)
}

// bookLocked adds charges to the summaries, of the CPU time a share, and the CPU time of the
// process. It returns what it has given out.
func (l *Ledger) bookLocked(charges []charge, share float64, process time.Duration) (given time.Duration) {
	periods := [...]*period{l.short.current, l.long.current, l.all}
	for i := range charges {
		c := &charges[i]
		c.usage[CPU] = int64(float64(c.usage[CPU]) * share)
		given += c.usage.Time()
		for _, p := range periods {
			p.add(&c.account.keys, &c.usage)
		}
	}
	for _, p := range periods {
		p.process += process
	}
	return given
}
