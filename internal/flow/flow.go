package flow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/eventclock"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/queueset"
	flowmetrics "k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

const (
	// rememberedClasses is the number of slots, a power of two.
	rememberedClasses = 1 << 12
	// rememberedSize limits the bytes of the key of a slot.
	rememberedSize = 1 << 10
	// maxFree limits the free requests of a user that are served at once, so that a flood of them waits for seats.
	maxFree = 64
)

// Config is the configuration of a [Control]. All fields are required.
type Config struct {
	// Client updates the status of flow schemas. Informers, which the caller starts after New,
	// deliver flow schemas and priority levels.
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	// Limit is the number of seats. Exempt requests need none of them.
	Limit int
	// Stored returns the number and size of the objects of a resource, named as by
	// schema.GroupResource.String. Its errors are those of upstream's object count tracker.
	Stored func(resource string) (storage.Stats, error)
}

// Control is API priority and fairness: it decides which requests are served, and when. Build one with
// [New].
//
// Upstream's controller and its queues decide (apiserver pkg/util/flowcontrol). They cost half as much as
// a small request (E7). Control skips them if their decision is known: the kind of request was classified
// since the configuration last changed, no request of the priority level waits, and seats are free.
// Upstream's metrics count these requests, too.
type Control struct {
	config     Config
	controller flowcontrol.Interface
	estimate   flowrequest.WorkEstimatorFunc
	dropped    flowcontrol.DroppedRequestsTracker
	running    sync.WaitGroup // requests that the controller decides on

	// generation grows before the configuration changes.
	generation atomic.Uint64
	seed       maphash.Seed
	slots      [rememberedClasses]atomic.Pointer[classified]

	waiting [2]Gauge // reads, and other requests

	// loaded is closed when the stored priority levels are in force, all at once. The mandatory levels
	// are always in force.
	loaded     chan struct{}
	loadedOnce sync.Once

	mu        sync.Mutex
	queueSets map[string]*queueSet // guarded by mu: by priority level
	classes   map[[4]string]*Class // guarded by mu: by names and UIDs
	free      map[string]int       // guarded by mu: free requests that are served, by user; none is 0
}

// Class is a flow schema and its priority level. It is immutable except for rejected.
type Class struct {
	Schema, Level       string // their names
	SchemaUID, LevelUID string
	rejected            atomic.Int64 // requests
}

// classified is the class of one kind of requests in one generation.
type classified struct {
	key        string // of the requests, by AppendKey
	generation uint64
	class      *Class
	queueSet   *queueSet
}

// Request is the part of a request, beside its attributes, that Control needs.
type Request interface {
	RequestInfo() *apirequest.RequestInfo
	URL() *url.URL
}

// Seat holds one or more of upstream's seats while a request is served. The zero value holds none.
type Seat struct {
	queueSet *queueSet
	class    *Class
	verb     string
	seats    int // 0 for a free request
	since    time.Time
	// For seats that the controller gave: Release closes done; ended is closed after the release.
	done  chan<- struct{}
	ended <-chan struct{}
	// Waited is the time until the controller gave the seat.
	Waited time.Duration
	// For a free request.
	control *Control
	user    string
}

// New returns a Control with the mandatory configuration. Run loads the rest.
func New(config Config) *Control {
	f := &Control{
		config: config, dropped: flowcontrol.NewDroppedRequestsTracker(), seed: maphash.MakeSeed(),
		queueSets: make(map[string]*queueSet), classes: make(map[[4]string]*Class),
		free: make(map[string]int), loaded: make(chan struct{}),
	}
	flowmetrics.Register()
	supportWatchProgress()
	clock := eventclock.Real{}
	f.controller = flowcontrol.NewTestable(flowcontrol.TestableConfig{
		Name:                   "Controller",
		Clock:                  clock,
		AsFieldManager:         flowcontrol.ConfigConsumerAsFieldManager,
		FoundToDangling:        func(found bool) bool { return !found },
		InformerFactory:        config.Informers,
		FlowcontrolClient:      config.Client.FlowcontrolV1(),
		ServerConcurrencyLimit: config.Limit,
		ReqsGaugeVec:           flowmetrics.PriorityLevelConcurrencyGaugeVec,
		ExecSeatsGaugeVec:      flowmetrics.PriorityLevelExecutionSeatsGaugeVec,
		QueueSetFactory:        &queueSetFactory{f, queueset.NewQueueSetFactory(clock)},
	})
	f.estimate = flowrequest.NewWorkEstimator(config.Stored, f.controller.GetInterestedWatchCount,
		flowrequest.DefaultWorkEstimatorConfig(), f.controller.GetMaxSeats)
	return f
}

// Run follows the configuration until ctx ends, and then waits for the last request.
func (c *Control) Run(ctx context.Context) error {
	err := c.controller.Run(ctx.Done())
	<-ctx.Done()
	c.running.Wait()
	if err != nil && ctx.Err() == nil {
		return errors.Join(errors.New("flow: controller"), err)
	}
	return nil
}

// Await blocks until the stored priority levels are in force. It returns the error of ctx if ctx ends
// first. Until then all requests except those of system:masters belong to the catch-all level, which
// serves few at once and rejects the others. The informers must have synced. In a new cluster, which
// has no levels yet, Await does not wait.
func (c *Control) Await(ctx context.Context) error {
	levels, err := c.config.Informers.Flowcontrol().V1().PriorityLevelConfigurations().Lister().List(labels.Everything())
	if err == nil && slices.ContainsFunc(levels, func(l *flowcontrolv1.PriorityLevelConfiguration) bool { return !mandatory(l.Name) }) {
		select {
		case <-c.loaded:
		case <-ctx.Done():
			select {
			case <-c.loaded: // ctx may have ended before Await was called
			default:
				err = ctx.Err()
			}
		}
	}
	if err != nil {
		return fmt.Errorf("flow: priority levels: %w", err)
	}
	return nil
}

// mandatory reports whether a priority level exists before any is loaded.
func mandatory(level string) bool {
	return level == flowcontrolv1.PriorityLevelConfigurationNameExempt || level == flowcontrolv1.PriorityLevelConfigurationNameCatchAll
}

// Install adds upstream's debug pages, which show the queues.
func (c *Control) Install(paths *mux.PathRecorderMux) { c.controller.Install(paths) }

// RegisterWatch counts a watch until the result is called. Writes of objects with watches take more
// seats.
func (c *Control) RegisterWatch(info *apirequest.RequestInfo, query string) (forget func()) {
	req := &http.Request{URL: &url.URL{RawQuery: query}}
	return c.controller.RegisterWatch(req.WithContext(apirequest.WithRequestInfo(context.Background(), info)))
}

// Watches returns the number of watches that a write concerns.
func (c *Control) Watches(info *apirequest.RequestInfo) int {
	return c.controller.GetInterestedWatchCount(info)
}

// RetryAfter counts a rejected request and returns the number of seconds to wait before a retry.
func (c *Control) RetryAfter(class *Class) int64 {
	class.rejected.Add(1)
	c.dropped.RecordDroppedRequest(class.Level)
	return c.dropped.GetRetryAfter(class.Level)
}

// Acquire waits until a request may be served and fills seat, which the caller must release. It
// returns false if until passes or ctx ends first. ctx has the request's values and ends when the client
// leaves. A free request is only classified and counted. It takes no seat and never waits, unless 64 free
// requests of its user are being served.
func (c *Control) Acquire(ctx context.Context, a authorizer.Attributes, r Request, free bool, until time.Time, seat *Seat) (class *Class, ok bool) {
	name := a.GetUser().GetName()
	if free = free && c.addFree(name, 1); free {
		defer func() {
			if ok {
				seat.control, seat.user = c, name
			} else {
				c.addFree(name, -1)
			}
		}()
	}
	var room [KeyRoom]byte
	key := AppendKey(room[:0], a, "") // flow schemas do not match names
	generation := c.generation.Load()
	known := c.slot(key).Load()
	// The controller decides on watches that take seats, because most of them are the first of their kind.
	if known != nil && known.generation == generation && known.key == string(key) && (free || a.GetVerb() != "watch") {
		work := c.Estimate(a, r, free, known.class)
		if work.AdditionalLatency == 0 && known.queueSet.enter(work.MaxSeats()) {
			*seat = Seat{queueSet: known.queueSet, class: known.class, verb: a.GetVerb(), seats: work.MaxSeats(), since: time.Now()}
			known.class.begin(ctx, known.queueSet, work.MaxSeats())
			return known.class, true
		}
	}
	return c.queue(ctx, slices.Clone(key), a, r, free, until, seat)
}

// addFree counts n more free requests of a user, and reports whether they may be served.
func (c *Control) addFree(user string, n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.free[user] + n
	switch {
	case now > maxFree:
		return false
	case now == 0:
		delete(c.free, user)
	default:
		c.free[user] = now
	}
	return true
}

func (c *Control) slot(key []byte) *atomic.Pointer[classified] {
	return &c.slots[maphash.Bytes(c.seed, key)%rememberedClasses]
}

// queue lets the controller decide. The controller calls a function and releases the seat
// when the function returns, so it needs its own goroutine for the request.
func (c *Control) queue(ctx context.Context, key []byte, a authorizer.Attributes, r Request, free bool, until time.Time, seat *Seat) (*Class, bool) {
	info := r.RequestInfo()
	var class *Class
	note := func(fs *flowcontrolv1.FlowSchema, pl *flowcontrolv1.PriorityLevelConfiguration, _ string) {
		class = c.classify(key, fs, pl)
	}
	estimate := func() flowrequest.WorkEstimate {
		work := c.Estimate(a, r, free, class)
		flowmetrics.ObserveWorkEstimatedSeats(class.Level, class.Schema, work.MaxSeats())
		return work
	}
	started, ended, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	execute := func() {
		close(started)
		<-done
	}
	began, kind := time.Now(), 1
	switch info.Verb {
	case "get", "list", "watch":
		kind = 0
	}
	var panicked any
	c.running.Go(func() {
		defer close(ended)
		defer func() { panicked = recover() }()
		ctx, cancel := context.WithDeadline(apirequest.WithRequestInfo(ctx, info), until)
		defer cancel()
		digest := flowcontrol.RequestDigest{RequestInfo: info, User: a.GetUser()}
		c.controller.Handle(ctx, digest, note, estimate, c.waiting[kind].note, execute)
	})
	select {
	case <-started:
		*seat = Seat{done: done, ended: ended, Waited: time.Since(began)}
		return class, true
	case <-ended:
		if panicked != nil {
			panic(panicked)
		}
		return class, false
	}
}

// Gauge counts requests, and keeps the highest count.
type Gauge struct{ now, peak atomic.Int64 }

// Add counts delta more requests, and returns how many there are. The peak is raised when requests leave; until then
// Peak finds them in now.
func (g *Gauge) Add(delta int64) int64 {
	now := g.now.Add(delta)
	before := now - delta
	for peak := g.peak.Load(); before > peak && !g.peak.CompareAndSwap(peak, before); peak = g.peak.Load() {
	}
	return now
}

// note counts a request that enters a queue, or leaves it.
func (g *Gauge) note(in bool) {
	if in {
		g.Add(1)
	} else {
		g.Add(-1)
	}
}

// Peak returns the highest count since the last call.
func (g *Gauge) Peak() int { return int(max(g.peak.Swap(0), g.now.Load())) }

// Waiting returns the peaks of waiting reads and of other waiting requests since the last call.
func (c *Control) Waiting() (reading, mutating int) { return c.waiting[0].Peak(), c.waiting[1].Peak() }

// classify stores the controller's classification of a request. The controller calls it while the
// configuration cannot change.
func (c *Control) classify(request []byte, fs *flowcontrolv1.FlowSchema, pl *flowcontrolv1.PriorityLevelConfiguration) *Class {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := [4]string{fs.Name, pl.Name, string(fs.UID), string(pl.UID)}
	class := c.classes[key]
	if class == nil {
		class = &Class{Schema: fs.Name, Level: pl.Name, SchemaUID: string(fs.UID), LevelUID: string(pl.UID)}
		c.classes[key] = class
	}
	if queues := c.queueSets[pl.Name]; queues != nil && len(request) <= rememberedSize {
		c.slot(request).Store(&classified{key: string(request), generation: c.generation.Load(), class: class, queueSet: queues})
	}
	return class
}

// dropDeletedLocked drops the priority levels and flow schemas that were deleted. Requests that hold their seats keep
// them. Complete calls it for each priority level that is left when upstream's controller handles the deletion.
func (c *Control) dropDeletedLocked() {
	informers := c.config.Informers.Flowcontrol().V1()
	maps.DeleteFunc(c.queueSets, func(name string, _ *queueSet) bool {
		_, err := informers.PriorityLevelConfigurations().Lister().Get(name)
		return err != nil && !mandatory(name)
	})
	maps.DeleteFunc(c.classes, func(key [4]string, _ *Class) bool {
		schema, err := informers.FlowSchemas().Lister().Get(key[0])
		return err != nil || string(schema.UID) != key[2] || c.queueSets[key[1]] == nil
	})
}

// Queued reports whether the controller gave the seat, after the request may have waited.
func (s *Seat) Queued() bool { return s.done != nil }

// Release releases the seat. Further calls do nothing.
func (s *Seat) Release() {
	switch {
	case s.queueSet != nil:
		s.class.end(s.verb, s.seats, time.Since(s.since))
		s.queueSet.leave(s.seats)
	case s.done != nil:
		close(s.done)
		<-s.ended // otherwise the client's next request might wait for this seat
	}
	if s.control != nil {
		s.control.addFree(s.user, -1)
	}
	*s = Seat{}
}

// begin updates upstream's metrics for a request that got seats without upstream's controller.
func (c *Class) begin(ctx context.Context, l *queueSet, seats int) {
	flowmetrics.ObserveWorkEstimatedSeats(c.Level, c.Schema, seats)
	if !l.exempt {
		flowmetrics.ObserveWaitingDuration(ctx, c.Level, c.Schema, "true", 0)
	}
	flowmetrics.AddDispatch(ctx, c.Level, c.Schema)
	l.began(ctx, c.Schema, seats)
}

// end updates upstream's metrics when the request ends, or when a watch is initialized.
func (c *Class) end(verb string, seats int, took time.Duration) {
	ctx := context.Background()
	if verb == "watch" { // a label
		ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{Verb: verb})
	}
	flowmetrics.AddRequestsExecuting(ctx, c.Level, c.Schema, -1)
	flowmetrics.AddSeatConcurrencyInUse(c.Level, c.Schema, -seats)
	flowmetrics.ObserveExecutionDuration(ctx, c.Level, c.Schema, took)
}

// Estimate returns the number of seats that a request of a class takes, and for how long it keeps them after its end.
func (c *Control) Estimate(a authorizer.Attributes, r Request, free bool, class *Class) flowrequest.WorkEstimate {
	req := new(http.Request)
	switch verb := a.GetVerb(); {
	case free:
		return flowrequest.WorkEstimate{}
	case verb == "list", verb == "watch":
		req.URL = r.URL() // whose query the estimate depends on
	case verb == "create", verb == "update", verb == "patch", verb == "delete":
	default:
		return flowrequest.WorkEstimate{InitialSeats: 1} // upstream's estimator says so, too
	}
	return c.estimate(req.WithContext(apirequest.WithRequestInfo(context.Background(), r.RequestInfo())), class.Schema, class.Level)
}

// watchProgressSet sets upstream's variable only once, because other servers in the process may read it.
var watchProgressSet = sync.Once{}

// supportWatchProgress makes upstream's estimator assume that etcd supports progress requests of
// watches. Then it estimates that a cache serves consistent lists, as the caches here always do.
func supportWatchProgress() {
	watchProgressSet.Do(func() {
		feature.DefaultFeatureSupportChecker = watchProgress{feature.DefaultFeatureSupportChecker}
	})
}

type watchProgress struct{ feature.FeatureSupportChecker }

// Supports implements feature.FeatureSupportChecker.
func (w watchProgress) Supports(f storage.Feature) bool {
	return f == storage.RequestWatchProgress || w.FeatureSupportChecker.Supports(f)
}

// Level is the state of a priority level.
type Level struct {
	Name       string `json:"name"`
	Exempt     bool   `json:"exempt"`
	Seats      int    `json:"seats"`      // the limit, unless the level is exempt
	Taken      int    `json:"taken"`      // seats
	Executing  int    `json:"executing"`  // requests that hold a seat
	Waiting    int    `json:"waiting"`    // requests in queues
	Dispatched int    `json:"dispatched"` // requests that were given seats, since the start
	Rejected   int64  `json:"rejected"`   // requests, since the start
}

// Levels returns all priority levels, by name.
func (c *Control) Levels() []Level {
	c.mu.Lock()
	rejected, queueSets := make(map[string]int64), maps.Clone(c.queueSets)
	for _, class := range c.classes {
		rejected[class.Level] += class.rejected.Load()
	}
	c.mu.Unlock()
	levels := make([]Level, 0, len(queueSets))
	for _, name := range slices.Sorted(maps.Keys(queueSets)) {
		l := queueSets[name]
		dump := l.Dump(false)
		l.mu.Lock()
		limit := l.dispatch.ConcurrencyLimit
		l.mu.Unlock()
		levels = append(levels, Level{
			Name: name, Exempt: l.exempt, Seats: limit,
			Taken: dump.SeatsInUse, Executing: dump.Executing, Waiting: dump.Waiting,
			Dispatched: dump.Dispatched, Rejected: rejected[name],
		})
	}
	return levels
}

// KeyRoom is the number of bytes that most keys of [AppendKey] fit into.
const KeyRoom = 512

// AppendKey appends to dst all attributes of a request that flow schemas match. With the name of the object, the key
// has all attributes that RBAC matches. The request must have a user.
func AppendKey(dst []byte, a authorizer.Attributes, name string) []byte {
	who := a.GetUser()
	add := func(parts ...string) {
		for _, s := range parts {
			dst = append(binary.AppendUvarint(dst, uint64(len(s))), s...)
		}
	}
	if add(who.GetName(), a.GetVerb(), a.GetNamespace()); a.IsResourceRequest() {
		dst = append(dst, 1)
		add(a.GetAPIGroup(), a.GetResource(), a.GetSubresource(), name)
	} else {
		dst = append(dst, 0)
		add(a.GetPath())
	}
	add(who.GetGroups()...)
	return dst
}
