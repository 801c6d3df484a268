package statuspage

import (
	"slices"
	"sync"
	"time"
)

// mostFailures is how many Failures remembers, and maxText how much of each text.
const (
	mostFailures = 50
	maxText      = 300
)

// Failure is an answer that was the server's fault: its code is 500 or above.
type Failure struct {
	Time      time.Time `json:"time"`
	Code      int       `json:"code"`
	Method    string    `json:"method"`
	Path      string    `json:"path"`
	Message   string    `json:"message"`
	User      string    `json:"user"`
	UserAgent string    `json:"userAgent"`
	AuditID   string    `json:"auditID"`
}

// Failures remembers the last ones. The zero value remembers none.
type Failures struct {
	mu   sync.Mutex
	last []Failure // guarded by mu
	all  int64     // guarded by mu
}

// Add remembers f, and not all of its texts if they are long.
func (r *Failures) Add(f Failure) {
	for _, text := range []*string{&f.Method, &f.Path, &f.Message, &f.User, &f.UserAgent, &f.AuditID} {
		if len(*text) > maxText {
			*text = string([]byte((*text)[:maxText])) // the rest is not kept for it
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all++
	if len(r.last) == mostFailures {
		copy(r.last, r.last[1:])
		r.last = r.last[:mostFailures-1]
	}
	r.last = append(r.last, f)
}

// list returns those that are remembered, the last first, and how many there were.
func (r *Failures) list() ([]Failure, int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := append([]Failure{}, r.last...)
	slices.Reverse(last)
	return last, r.all
}
