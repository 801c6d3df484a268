package kv

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const (
	// watchBuffer is how many responses a watch may be ahead of its reader.
	watchBuffer = 16

	// Pauses before a stream that broke is opened again.
	reopenFirst = time.Millisecond
	reopenMax   = 100 * time.Millisecond

	// confirmFirst is how long the first stream waits until etcd confirms its watch. Then the stream is abandoned,
	// because its member may hang. The next stream, on another member, gets twice as long, up to slowTimeout.
	confirmFirst = time.Second

	// maxSkips is how many streams in succession may be abandoned because their member has hung before. etcd's client
	// alternates between its connections, so the next stream usually has another member.
	maxSkips = 3
)

// watches holds the open watches of a store.
type watches struct {
	wait sync.WaitGroup // the watches' goroutines

	mu     sync.Mutex
	closed bool
	open   map[*watch]struct{}
	hung   string // address of the member of the last watch that timed out
}

// watch is one open watch. It has its own stream to etcd, so that a watch that is
// catching up does not hold back the progress of others.
type watch struct {
	internal bool // opened by this package, which needs no progress
	cancel   context.CancelCauseFunc

	mu     sync.Mutex  // held while something is sent
	stream watchStream // nil while there is none
}

type watchStream = etcdserverpb.Watch_WatchClient

func (w *watches) add(cancel context.CancelCauseFunc, internal bool) *watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	if w.open == nil {
		w.open = make(map[*watch]struct{})
	}
	w.wait.Add(1)
	watch := &watch{internal: internal, cancel: cancel}
	w.open[watch] = struct{}{}
	return watch
}

func (w *watches) remove(watch *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, watch)
	w.wait.Done()
}

// recordHung records that a watch of a member has timed out.
func (w *watches) recordHung(member string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hung = member
}

// isLastHung reports whether a member is the last that recordHung recorded.
func (w *watches) isLastHung(member string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return member != "" && w.hung == member
}

func (w *watches) list() []*watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.open))
}

func (w *watches) end(cause error) {
	for _, watch := range w.list() {
		watch.cancel(cause)
	}
}

func (w *watches) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.end(ErrClosed)
	w.wait.Wait()
}

// attach sets the watch's stream and sends the first request; nil removes the stream. The next Recv returns the error
// of a failed Send.
func (w *watch) attach(stream watchStream, request *etcdserverpb.WatchRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stream = stream; stream != nil {
		_ = stream.Send(request)
	}
}

// requestProgress requests a progress response if there is a stream.
func (w *watch) requestProgress() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stream != nil {
		_ = w.stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_ProgressRequest{
			ProgressRequest: &etcdserverpb.WatchProgressRequest{},
		}})
	}
}

// Watch delivers every event under the prefix with a revision > after.
func (e *Etcd) Watch(ctx context.Context, prefix string, after int64) <-chan WatchResponse {
	return e.watch(ctx, prefix, after, false)
}

func (e *Etcd) watch(ctx context.Context, prefix string, after int64, internal bool) <-chan WatchResponse {
	out := make(chan WatchResponse, watchBuffer)
	inner, cancel := context.WithCancelCause(ctx)
	watch := e.watches.add(cancel, internal)
	if watch == nil {
		cancel(ErrClosed)
		out <- WatchResponse{Err: e.fail("watch", prefix, ErrClosed)}
		close(out)
		return out
	}
	go func() {
		defer e.watches.remove(watch)
		defer cancel(nil)
		defer close(out)
		f := follower{etcd: e, watch: watch, prefix: prefix, delivered: after, out: out, confirmTimeout: confirmFirst}
		err := f.follow(inner)
		cause := context.Cause(inner)
		if ctx.Err() != nil && !errors.Is(cause, errStalled) {
			return
		}
		if cause != nil && !errors.Is(err, cause) {
			err = cause
		}
		last := WatchResponse{Err: e.fail("watch", prefix, err)}
		if errors.Is(err, ErrClosed) || errors.Is(err, errStalled) { // the reader may have stopped
			select {
			case out <- last:
			default:
			}
			return
		}
		select {
		case out <- last:
		case <-ctx.Done():
		}
	}()
	return out
}

// follower copies the events of a prefix from etcd to out. It uses the generated gRPC client, because the Watcher of
// etcd's client passes each event through three more goroutines (B24).
type follower struct {
	etcd      *Etcd
	watch     *watch
	prefix    string
	delivered int64 // everything up to this revision was delivered
	lastEvent int64 // revision of the stream's last event, at first the one after which the stream begins
	out       chan<- WatchResponse

	pending   []*mvccpb.Event // of the stream, until the rest of their revision arrives
	allKeys   bool            // the stream watches the whole key space
	confirmed bool            // etcd has confirmed the stream's watch
	trusted   atomic.Bool     // the progress reports of the stream's member can be trusted

	confirmTimeout time.Duration // how long the next stream may take until its watch is confirmed
	skips          int           // streams abandoned since the last confirmation
}

// follow copies until ctx ends or the watch cannot continue, and returns the reason. It reopens a broken stream, on
// another member if necessary.
func (f *follower) follow(ctx context.Context) error {
	if err := f.etcd.awaitOpen(ctx); err != nil {
		return err
	}
	// Require etcd to end the stream while there is no leader.
	ctx = metadata.NewOutgoingContext(ctx, metadata.Pairs(rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader))
	for delay := reopenFirst; ; delay = min(2*delay, reopenMax) {
		before := f.delivered
		err := f.copyStream(ctx, f.etcd.connection)
		switch {
		case ctx.Err() != nil:
			return err
		case errors.Is(err, errUntrusted), errors.Is(err, errSkipped):
			continue
		case errors.Is(err, errUnconfirmed):
			f.etcd.logger.Warn("etcd does not confirm a watch, opening another", "timeout", f.confirmTimeout, "error", err)
			f.confirmTimeout = min(2*f.confirmTimeout, slowTimeout)
			continue
		case status.Code(err) != codes.Unavailable && status.Code(err) != codes.Internal,
			errors.Is(rpctypes.Error(err), rpctypes.ErrNoLeader): // etcd's client does not reopen such a stream either
			return rpctypes.Error(err)
		case f.delivered > before:
			delay = reopenFirst
		}
		if err := sleep(ctx, delay); err != nil {
			return err
		}
	}
}

// copyStream copies one stream until it ends, and returns the reason.
func (f *follower) copyStream(ctx context.Context, connection *Connection) error {
	var identifying sync.WaitGroup
	defer identifying.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	replacements := f.etcd.history.replacements.Load()
	stream, err := connection.Watch.Watch(ctx, grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(math.MaxInt32))
	if err != nil {
		return err
	}
	members := connection.members
	f.allKeys = !f.watch.internal && (members == nil || members.allKeys.Load())
	f.trusted.Store(members == nil)
	f.pending, f.confirmed, f.lastEvent = nil, false, f.delivered
	member := memberOf(stream)
	if f.skips < maxSkips && f.etcd.watches.isLastHung(member) {
		f.skips++
		return errSkipped
	}
	unconfirmed := time.AfterFunc(f.confirmTimeout, func() { cancel(errUnconfirmed) })
	defer unconfirmed.Stop()
	f.watch.attach(stream, f.request())
	defer f.watch.attach(nil, nil)
	for {
		resp, err := stream.Recv()
		if err != nil {
			return f.endReason(ctx, member, err)
		}
		if resp.Created {
			unconfirmed.Stop()
			f.confirmed, f.confirmTimeout, f.skips = true, confirmFirst, 0
			if members != nil && !f.watch.internal {
				identifying.Go(func() { f.identify(ctx, cancel, members, resp.Header.GetMemberId()) })
			}
		}
		response, err := f.read(resp, replacements)
		if err != nil {
			return err
		}
		if response.Progress == 0 {
			continue
		}
		f.etcd.sawProgress(replacements, response.Progress)
		select {
		case f.out <- response:
			f.delivered = response.Progress
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// endReason returns the reason for the end of a stream, and records a member that has hung.
func (f *follower) endReason(ctx context.Context, member string, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if member != "" && (errors.Is(err, errStalled) || errors.Is(err, errUnconfirmed)) {
		f.etcd.watches.recordHung(member)
		err = fmt.Errorf("etcd at %s: %w", member, err)
	}
	return err
}

// sawProgress records that the store has reached the progress of a watch.
func (e *Etcd) sawProgress(replacements uint64, progress int64) {
	if !e.connection.InProcess {
		e.history.raise(replacements, progress, 0)
		return
	}
	// A server in this process sends the event of a write before it raises the revision of its responses. history would
	// take a lower revision for a replacement.
	raise(&e.revisions.delivered, progress)
}

// memberOf returns the address of a stream's member, "" for a server in this process or if a proxy hides it.
func memberOf(stream watchStream) string {
	if member, ok := peer.FromContext(stream.Context()); ok && member.Addr != nil {
		return member.Addr.String()
	}
	return ""
}

// identify determines whether the progress reports of the stream's member can be trusted. If not, it
// ends a stream that watches only the prefix.
func (f *follower) identify(ctx context.Context, end context.CancelCauseFunc, members *members, member uint64) {
	f.trusted.Store(members.identify(ctx, member))
	if members.allKeys.Load() && !f.allKeys {
		end(errUntrusted)
	}
}

// request returns the request that creates the watch, from the first revision that was not delivered. kine reports
// progress reliably only if ProgressNotify is set (kine pkg/server/watch.go).
func (f *follower) request() *etcdserverpb.WatchRequest {
	prefix := f.prefix
	if f.allKeys {
		prefix = ""
	}
	from, end := cmp.Or(prefix, "\x00"), clientv3.GetPrefixRangeEnd(prefix)
	return &etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: &etcdserverpb.WatchCreateRequest{
			Key: []byte(from), RangeEnd: []byte(end), StartRevision: f.delivered + 1, ProgressNotify: !f.watch.internal,
			Fragment: true, // a large response would be in memory three times
		},
	}}
}

// read converts a response. replacements is the store's count when the stream was opened. The result has Progress if it
// has anything new.
func (f *follower) read(resp *etcdserverpb.WatchResponse, replacements uint64) (WatchResponse, error) {
	switch {
	case resp.CompactRevision > 0:
		f.etcd.observeCompaction(replacements, resp.CompactRevision)
		return WatchResponse{}, rpctypes.ErrCompacted
	case resp.Canceled && resp.CancelReason != "":
		reason := resp.CancelReason
		if _, text, wrapped := strings.Cut(reason, " desc = "); wrapped { // kine's
			reason = text
		}
		return WatchResponse{}, rpctypes.Error(status.Error(codes.FailedPrecondition, reason))
	case resp.Canceled:
		return WatchResponse{}, errWatchEnded
	case resp.Header != nil && f.etcd.history.otherCluster(resp.Header):
		return WatchResponse{}, ErrReplaced
	}
	if events := f.completeRevisions(resp); len(events) > 0 {
		first, last := events[0].Kv.ModRevision, events[len(events)-1].Kv.ModRevision
		switch {
		case first > f.lastEvent && first <= f.delivered:
			return WatchResponse{}, errMisreported
		case last <= f.delivered:
			return WatchResponse{}, nil // already delivered
		}
		f.lastEvent = last
		return WatchResponse{Batches: batchesOf(f.underPrefix(events), f.delivered), Progress: last}, nil
	}
	// etcd holds events back until it has confirmed the watch, but not progress (etcd
	// server/etcdserver/api/v3rpc/watch.go, sendLoop).
	if f.confirmed && !resp.Created && !resp.Fragment && f.trusted.Load() && resp.Header != nil && resp.Header.Revision >= f.delivered {
		return WatchResponse{Progress: resp.Header.Revision}, nil
	}
	return WatchResponse{}, nil // untrusted progress, or of a member that lags behind
}

// completeRevisions returns the pending events and those of resp. If further fragments follow resp, the events of the
// last revision become pending, because the next fragment may have more of them.
func (f *follower) completeRevisions(resp *etcdserverpb.WatchResponse) []*mvccpb.Event {
	events := resp.Events
	if len(f.pending) > 0 {
		events = append(f.pending, events...)
		f.pending = nil
	}
	if !resp.Fragment || len(events) == 0 {
		return events
	}
	last := len(events) - 1
	for last > 0 && events[last-1].Kv.ModRevision == events[last].Kv.ModRevision {
		last--
	}
	f.pending = slices.Clone(events[last:])
	return events[:last]
}

func (f *follower) underPrefix(events []*mvccpb.Event) []*mvccpb.Event {
	if !f.allKeys {
		return events
	}
	prefix := []byte(f.prefix)
	outside := func(event *mvccpb.Event) bool { return !bytes.HasPrefix(event.Kv.Key, prefix) }
	if !slices.ContainsFunc(events, outside) {
		return events
	}
	return slices.DeleteFunc(slices.Clone(events), outside) // the memory may be etcd's
}

// errMisreported ends a watch whose progress was ahead of its events. [Error] reports it as ErrCompacted, because the
// reader must load the state again.
var errMisreported = errors.New("etcd reported progress before events of that revision")

// errWatchEnded is the error of a watch that etcd ended without a reason.
var errWatchEnded = errors.New("etcd ended the watch")

// errSkipped ends a stream whose member has hung before.
var errSkipped = errors.New("the member of the last stalled watch is skipped")

// errUnconfirmed ends a stream whose watch was not confirmed in time.
var errUnconfirmed = errors.New("watch not confirmed")

// RequestProgress requests a progress response in every open watch.
func (e *Etcd) RequestProgress(ctx context.Context) error {
	if err := e.awaitOpen(ctx); err != nil {
		return e.fail("request progress", "", err)
	}
	for _, watch := range e.watches.list() {
		if !watch.internal {
			watch.requestProgress()
		}
	}
	return nil
}

// batchesOf groups events of revisions > after by revision. etcd sends whole
// revisions, in order.
func batchesOf(events []*mvccpb.Event, after int64) []Batch {
	for len(events) > 0 && events[0].Kv.ModRevision <= after {
		events = events[1:]
	}
	var batches []Batch
	converted, first := make([]Event, len(events)), 0
	for i, event := range events {
		converted[i] = eventOf(event)
		if i+1 == len(events) || events[i+1].Kv.ModRevision != event.Kv.ModRevision {
			batches = append(batches, Batch{Revision: event.Kv.ModRevision, Events: converted[first : i+1 : i+1]})
			first = i + 1
		}
	}
	return batches
}

func eventOf(event *mvccpb.Event) Event {
	kv := event.Kv
	converted := Event{Key: string(kv.Key), Revision: kv.ModRevision}
	switch {
	case event.Type == mvccpb.Event_DELETE:
		converted.Kind = Delete
	case kv.CreateRevision == kv.ModRevision:
		converted.Kind, converted.Value = Create, kv.Value
	default:
		converted.Kind, converted.Value = Update, kv.Value
	}
	return converted
}
