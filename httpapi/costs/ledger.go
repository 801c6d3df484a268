package costs

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// maxAccounts is the largest number of accounts.
	maxAccounts = 4096

	// interval is the time between sweeps of Run, and the length of the shortest periods.
	interval = 10 * time.Second

	// maxCredit bounds the CPU time of the past that may still be given out: a request that
	// ends now may have used it.
	maxCredit = time.Second
)

// Ledger adds up the costs of all clients. Its methods may be called by any number of goroutines.
type Ledger struct {
	cpu func() time.Duration

	mu     sync.Mutex
	used   time.Duration // guarded by mu: the CPU time of the process at the last sweep
	credit time.Duration // guarded by mu: how much of it may still be given out
	short  series        // guarded by mu
	long   series        // guarded by mu
	all    *period       // guarded by mu

	lookup   sync.RWMutex
	accounts map[Key]*Account // guarded by lookup; only changed with mu held, too
}

// New returns an empty Ledger, whose time begins now. cpu returns the CPU time that the process has used.
func New(cpu func() time.Duration) *Ledger {
	now := time.Now()
	l := &Ledger{cpu: cpu, used: cpu(), all: &period{from: now}, accounts: make(map[Key]*Account)}
	l.short = series{length: interval, most: 6, current: &period{from: now}}
	l.long = series{length: time.Minute, most: 5, current: &period{from: now}}
	return l
}

// Run keeps the summaries current until ctx ends.
func (l *Ledger) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) { l.Sweep() }, interval)
}

// Account returns k's account. It does not keep k's strings.
func (l *Ledger) Account(k Key) *Account {
	k.truncate()
	l.lookup.RLock()
	a := l.accounts[k]
	l.lookup.RUnlock()
	if a != nil {
		return a
	}
	return l.open(Key{strings.Clone(k.User), strings.Clone(k.UserAgent), strings.Clone(k.Resource), strings.Clone(k.Verb)})
}

// open returns the account of key, and creates it if necessary. If there are too many accounts, it first
// removes all of them; they are created again when they are used.
func (l *Ledger) open(key Key) *Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accounts[key]; a != nil {
		return a
	}
	if len(l.accounts) == maxAccounts {
		l.sweepLocked(time.Now(), true)
	}
	a := &Account{ledger: l}
	for d := range dimensions {
		a.keys[d] = unique.Make(key.project(d))
	}
	l.lookup.Lock()
	defer l.lookup.Unlock()
	l.accounts[key] = a
	return a
}

// Sweep moves the costs of the accounts to the summaries, and removes accounts that were not used since the last sweep.
func (l *Ledger) Sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepLocked(time.Now(), false)
}

// charge is an account with its costs since the last sweep.
type charge struct {
	account *Account
	usage   Usage
}

// takeLocked empties the accounts and returns their costs. It removes the accounts that had none, or all.
func (l *Ledger) takeLocked(all bool) (charges []charge, sum time.Duration) {
	l.lookup.Lock()
	defer l.lookup.Unlock()
	for key, a := range l.accounts {
		u := a.take()
		if all || u == (Usage{}) {
			delete(l.accounts, key)
			a.retired.Store(true)
			rest := a.take()
			u.add(&rest)
		}
		if (u != Usage{}) {
			charges = append(charges, charge{a, u})
			sum += u.Time()
		}
	}
	return charges, sum
}

// sweepLocked moves the costs of the accounts to the summaries. It adds at most the CPU time that the process
// has used. It removes the accounts that had no costs, or all.
func (l *Ledger) sweepLocked(now time.Time, all bool) {
	charges, sum := l.takeLocked(all)
	used := l.cpu()
	process := max(0, used-l.used)
	l.used = used
	l.credit += process
	share := 1.0
	if sum > l.credit {
		share = float64(l.credit) / float64(sum)
	}
	given := time.Duration(0)
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
	l.credit = min(max(0, l.credit-given), maxCredit)
	l.short.roll(now)
	l.long.roll(now)
}

// The maximum lengths of names.
const (
	maxUser     = 192
	maxAgent    = 128
	maxResource = 192
	maxVerb     = 32
)

// truncate truncates all names to their maximum lengths.
func (k *Key) truncate() {
	k.User = k.User[:min(len(k.User), maxUser)]
	k.UserAgent = k.UserAgent[:min(len(k.UserAgent), maxAgent)]
	k.Resource = k.Resource[:min(len(k.Resource), maxResource)]
	k.Verb = k.Verb[:min(len(k.Verb), maxVerb)]
}

// Account is the cost of one [Key] since the ledger's last sweep.
type Account struct {
	ledger *Ledger
	keys   [dimensions]unique.Handle[Key]

	used    [kinds]atomic.Int64
	retired atomic.Bool // the ledger does not read it again
}

// Key identifies the account.
func (a *Account) Key() Key { return a.keys[ByClient].Value() }

// Add charges u, and returns the account to charge the next time, because the ledger may have removed this
// one. A nil account ignores u.
func (a *Account) Add(u Usage) *Account {
	if a == nil {
		return nil
	}
	for k, n := range u {
		if n != 0 {
			a.used[k].Add(n)
		}
	}
	if !a.retired.Load() {
		return a
	}
	// The ledger reads a after setting retired, so every cost added before is taken either by the ledger or here.
	return a.ledger.open(a.Key()).Add(a.take())
}

// take empties the account.
func (a *Account) take() (u Usage) {
	for k := range u {
		u[k] = a.used[k].Swap(0)
	}
	return u
}
