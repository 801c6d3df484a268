package revocation

import (
	"crypto/sha256"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/auth"
)

// What a user may lose.
const (
	lossNone uint32 = iota
	lossCredential
	lossPermission
)

// lossNames are the labels of what was lost in metrics.
var lossNames = [...]string{lossCredential: "credential", lossPermission: "permission"}

// credential is the one by which watches of one client were authenticated. It may contain secrets,
// and is kept for as long as one of these watches is open.
type credential struct {
	key          [sha256.Size]byte
	request      *http.Request // to authenticate once more; not changed
	impersonates bool
	rights       map[string]*right // guarded by table.mu

	// The rest belongs to the goroutine that calls Run and, while busy, to the one that
	// looks at it.
	busy       bool
	ties       auth.Dependencies
	local      bool // this process authenticated it without a provider or webhook
	asking     bool // a provider or webhook is being asked
	asked      bool
	retry      time.Time // not to be asked about before
	generation uint64
	revisions  []int64 // of ties.Objects when it was last authenticated
	next       time.Time
	who        user.Info
}

// allLocked returns the rights of c.
func (c *credential) allLocked() []*right {
	all := make([]*right, 0, len(c.rights))
	for _, held := range c.rights {
		all = append(all, held)
	}
	return all
}

// right is the right that watches of the same objects by one credential share. It implements
// streams.Right.
type right struct {
	of      *credential
	key     string
	holders int                    // guarded by table.mu
	lost    atomic.Uint32          // a loss
	ended   *prometheus.CounterVec // of its table
	leave   func(*right)           // takes away one holder

	// The rest belongs to the goroutine that the rest of its credential belongs to.
	attributes request.Attributes
	asking     bool // a webhook is being asked
	asked      bool
	retry      time.Time // not to be asked about before
	next       time.Time // to ask a webhook again
	all        uint64    // counters.authorizer.all when the authorizer was asked
	losses     uint64    // of the node that the user is, when the authorizer was asked
	single     bool      // a node watches one object: the node authorizer may change its mind
}

func (held *right) Lost() bool { return held.lost.Load() != lossNone }

func (held *right) Ended() { held.ended.WithLabelValues(lossNames[held.lost.Load()]).Inc() }

func (held *right) Leave() { held.leave(held) }
