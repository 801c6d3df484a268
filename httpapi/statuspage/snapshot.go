package statuspage

import (
	"time"

	"github.com/larder-io/larder/httpapi/costs"
	"github.com/larder-io/larder/internal/auth"
)

// Snapshot is the state of a server at one time.
type Snapshot struct {
	Time      time.Time `json:"time"`
	Started   time.Time `json:"started"`
	Version   string    `json:"version"`
	Refreshed float64   `json:"refreshedSeconds"` // how often there is a new one

	// Revision is the store's, 0 if it could not be asked.
	Revision   int64 `json:"revision"`
	Goroutines int64 `json:"goroutines"`
	Streams    int   `json:"streams"` // watches and other requests with a connection to themselves

	// Total is what all clients have cost since the start, and ProcessCPUSeconds what the
	// process has used in that time.
	Total             costs.Usage `json:"total"`
	ProcessCPUSeconds float64     `json:"processCPUSeconds"`

	Resources []Resource       `json:"resources"`
	Watchers  []Watchers       `json:"watchers"`
	Unlisted  int              `json:"unlistedWatches"` // watches of groups that are left out
	Flow      []auth.FlowLevel `json:"flow"`
	Clients   *costs.Report    `json:"clients"`
	Failures  []Failure        `json:"failures"` // the last first
	Failed    int64            `json:"failed"`   // how many there were since the start
	Checks    []Check          `json:"checks"`
	Memory    Memory           `json:"memory"`
}

// Resource is what the cache of one resource holds.
type Resource struct {
	Name     string `json:"name"`
	Ready    bool   `json:"ready"`
	Objects  int    `json:"objects"`
	Bytes    Bytes  `json:"bytes"`
	Revision int64  `json:"revision"`
	Lag      int64  `json:"lag"` // revisions that the store is ahead
	Watches  int64  `json:"watches"`
	Events   uint64 `json:"events"` // since the start
}

// Bytes is the bytes in a cache by kind.
type Bytes struct {
	Canonical int64 `json:"canonical"` // the encodings that all others are made from
	Encodings int64 `json:"encodings"` // others, that clients have asked for
	Frames    int64 `json:"frames"`    // of watches
	History   int64 `json:"history"`   // objects that only past events need
}

func (b *Bytes) add(other Bytes) {
	b.Canonical += other.Canonical
	b.Encodings += other.Encodings
	b.Frames += other.Frames
	b.History += other.History
}

// Watchers are the watches of one resource by one user and agent.
type Watchers struct {
	User      string `json:"user"`
	UserAgent string `json:"userAgent"`
	Resource  string `json:"resource"`
	Watches   int    `json:"watches"`
	Busy      int    `json:"busy"` // that have something to send at the moment
	// Lag is how many revisions a busy one is behind the cache at most.
	Lag int64 `json:"lag"`
}

// Check is the outcome of a health check.
type Check struct {
	Name  string `json:"name"`
	Error string `json:"error"` // "" if all is well
}

// Memory is the memory that the process has from the operating system, by use.
type Memory struct {
	Mapped  int64    `json:"mapped"`  // all that the runtime has and has not given back
	Heap    int64    `json:"heap"`    // objects, live or not yet collected
	Live    int64    `json:"live"`    // of the heap at the last collection
	Goal    int64    `json:"goal"`    // of the heap, when the next collection is due
	Limit   int64    `json:"limit"`   // GOMEMLIMIT, or a part of the cgroup's; 0 if there is none
	Caches  Bytes    `json:"caches"`  // of all resources
	Lists   int64    `json:"lists"`   // compressed pieces of lists
	Budgets []Budget `json:"budgets"` // of what caches keep beside the present objects
}

// Budget is what one resource, or all that share one, may keep.
type Budget struct {
	Name  string `json:"name"`
	Limit int64  `json:"limit"` // 0 if there is none
	Used  int64  `json:"used"`
}
