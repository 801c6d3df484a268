package consistency

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv/kvtest"
	"github.com/larder-io/larder/kv/snapshot"
)

var large = flag.Int("large", 20_000, "number of objects of the large resource of TestRestoredStoreHidesLostHistory")

// Words in objects that show when they were written.
const (
	kept  = "kept"  // before the backup
	gone  = "gone"  // after the backup
	later = "later" // after the restore
)

// lostResource is a resource part of whose history is lost.
type lostResource struct {
	kind, plural string
	names        int
	revisions    map[string]int64 // of all objects, by name
}

func (l *lostResource) prefix() string { return "/registry/" + l.plural + "/default/" }
func (l *lostResource) path() string   { return "/api/v1/namespaces/default/" + l.plural }
func (l *lostResource) name(i int) string {
	return fmt.Sprintf("o%06d", i)
}

func (l *lostResource) stored(name, word string) []byte {
	text := word
	if l.kind == "Secret" {
		text = base64.StdEncoding.EncodeToString([]byte(word))
	}
	return fmt.Appendf(nil, `{"kind":%q,"apiVersion":"v1","metadata":{"name":%q,"namespace":"default","uid":"00000000-0000-0000-0000-000000000000","labels":{"of":%q}},"data":{"p":%q}}`,
		l.kind, name, word, text)
}

// restoring is a cluster with one member, which is restored from a backup.
type restoring struct {
	*testing.T
	*cluster
	resources []*lostResource
	served    atomic.Bool // etcd serves the restored state
}

// write creates or updates objects with a word in one transaction, or deletes them if the word is "". It returns the
// revision.
func (r *restoring) write(s *lostResource, word string, names ...string) int64 {
	r.Helper()
	var changes []kvtest.Change
	for _, name := range names {
		change := kvtest.Change{Key: s.prefix() + name, IfRevision: s.revisions[name]}
		if word != "" {
			change.Value = s.stored(name, word)
		}
		changes = append(changes, change)
	}
	at, done, err := r.outsider.Transact(r.Context(), changes)
	if err != nil || !done {
		r.Fatalf("write %q to %s: done %v, error %v", word, s.plural, done, err)
	}
	for _, name := range names {
		if s.revisions[name] = at; word == "" {
			delete(s.revisions, name)
		}
	}
	return at
}

// change updates, deletes and creates objects.
func (r *restoring) change(s *lostResource, word string, at int) {
	r.write(s, word, s.name(at), s.name(at+1))
	r.write(s, "", s.name(at+2))
	r.write(s, word, word+s.name(at))
	for range 200 {
		r.write(s, word, s.name(at+3))
	}
}

// stored returns the revisions of the objects in etcd, by name.
func (r *restoring) stored(s *lostResource) map[string]int64 {
	r.Helper()
	items, err := r.outsider.Items(r.Context(), s.prefix())
	if err != nil {
		r.Fatal(err)
	}
	present := make(map[string]int64, len(items))
	for _, item := range items {
		present[strings.TrimPrefix(item.Key, s.prefix())] = item.Revision
	}
	return present
}

// lister lists and watches a resource as generated clients do. If paged is set, client-go lists in pages.
type lister struct {
	*cache.ListWatch
	paged bool
}

// IsWatchListSemanticsUnSupported makes client-go list in pages instead of opening a WatchList.
func (l lister) IsWatchListSemanticsUnSupported() bool { return l.paged }

// inform runs an informer of a resource at a replica until the test ends.
func (r *restoring) inform(s *lostResource, from *replica, paged bool) cache.SharedIndexInformer {
	r.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: from.url, BearerToken: "tester", TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf},
	})
	if err != nil {
		r.Fatal(err)
	}
	get := func() *rest.Request {
		return client.CoreV1().RESTClient().Get().Namespace("default").Resource(s.plural)
	}
	l := lister{paged: paged, ListWatch: &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return get().VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Get()
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			return get().VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
		},
	}}
	informer := cache.NewSharedIndexInformer(l, nil, 0, cache.Indexers{})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	r.Cleanup(func() {
		cancel()
		running.Wait()
		client.CoreV1().RESTClient().(*rest.RESTClient).Client.CloseIdleConnections()
	})
	return informer
}

// differs returns an error that describes the difference between an informer's objects and the store's.
func differs(informer cache.SharedIndexInformer, want map[string]int64) error {
	got := make(map[string]int64)
	for _, obj := range informer.GetStore().List() {
		accessor, err := apimeta.Accessor(obj)
		if err != nil {
			return err
		}
		var revision int64
		fmt.Sscan(accessor.GetResourceVersion(), &revision)
		got[accessor.GetName()] = revision
	}
	if maps.Equal(got, want) {
		return nil
	}
	for name, revision := range want {
		if got[name] != revision {
			return fmt.Errorf("%s has revision %d, in the store %d; %d objects, in the store %d", name, got[name], revision, len(got), len(want))
		}
	}
	return fmt.Errorf("%d objects, in the store %d", len(got), len(want))
}

// reader makes consistent reads of objects that exist only in the lost history.
type reader struct {
	*replica
	*lostResource
	served atomic.Int64 // number of reads that returned restored objects
	shown  atomic.Pointer[string]
}

func (r *restoring) read(ctx context.Context, d *reader) {
	for turn := 0; ctx.Err() == nil; turn++ {
		path := d.path() + "?labelSelector=of%3D" + gone
		if turn%2 == 1 {
			path = d.path() + "/" + gone + d.lostResource.name(0)
		}
		restored := r.served.Load() // loaded before the request is sent
		a := d.send(request{method: http.MethodGet, path: path})
		if !restored {
			pause(ctx, time.Millisecond)
			continue
		}
		switch {
		case a.code == http.StatusOK && strings.Contains(string(a.body), gone+d.lostResource.name(0)):
			d.shown.CompareAndSwap(nil, new(fmt.Sprintf("%s: %.300s", path, a.body)))
		case a.code == http.StatusOK || a.code == http.StatusNotFound:
			d.served.Add(1)
		default:
			pause(ctx, 10*time.Millisecond)
		}
	}
}

// expired sends requests until the server responds, and returns an error unless the response says that the revision is
// too old.
func (r *restoring) expired(from *replica, path string) error {
	r.Helper()
	code, body := 0, []byte(nil)
	from.Eventually(r.T, "responds to "+path, func() error {
		a := from.send(request{method: http.MethodGet, path: path, timeout: 30 * time.Second})
		code, body = a.code, a.body
		if a.err != nil || code == http.StatusTooManyRequests || code >= 500 {
			return fmt.Errorf("%d %v %s", code, a.err, body)
		}
		return nil
	})
	var frame struct {
		Type   string
		Object object
	}
	if code == http.StatusOK {
		if err := json.Unmarshal(body, &frame); err != nil || frame.Type != "ERROR" {
			return fmt.Errorf("%s: %d %.300s", path, code, body)
		}
		code = frame.Object.Code
	}
	if code != http.StatusGone {
		return fmt.Errorf("%s: %d %.300s", path, code, body)
	}
	return nil
}

// TestRestoredStoreHidesLostHistory restores etcd from a backup, without raising its revision, under two Larders, while
// clients read, watch and follow a small and a large resource. Consistent reads that begin after etcd serves again must
// not return lost objects. Requests with a revision of the lost history must get an Expired error. Informers must end
// with the stored objects.
func TestRestoredStoreHidesLostHistory(t *testing.T) {
	r := &restoring{T: t, cluster: newCluster(t, 1, 2)}
	r.resources = []*lostResource{
		{kind: "ConfigMap", plural: "configmaps", names: 20, revisions: map[string]int64{}},
		{kind: "Secret", plural: "secrets", names: *large, revisions: map[string]int64{}},
	}
	informers := make(map[*lostResource][]cache.SharedIndexInformer)
	for _, s := range r.resources {
		for first := 0; first < s.names; first += 100 {
			var names []string
			for i := first; i < min(first+100, s.names); i++ {
				names = append(names, s.name(i))
			}
			r.write(s, kept, names...)
		}
		for i, replica := range r.replicas {
			informers[s] = append(informers[s], r.inform(s, replica, i == 1))
		}
	}
	backup := filepath.Join(t.TempDir(), "backup")
	if _, err := snapshot.Save(t.Context(), snapshot.Source{Endpoints: r.urls}, backup); err != nil {
		t.Fatal(err)
	}
	var saved []map[string]int64
	for _, s := range r.resources {
		saved = append(saved, maps.Clone(s.revisions))
		r.change(s, gone, 0)
	}
	equal := func(what string) {
		t.Helper()
		for _, s := range r.resources {
			want := r.stored(s)
			for i, informer := range informers[s] {
				proctest.Eventually(t, fmt.Sprintf("informer %d of %s has %s", i, s.plural, what), func() error { return differs(informer, want) })
			}
		}
	}
	equal("the written objects")
	lost := slices.Max(slices.Collect(maps.Values(r.resources[1].revisions)))

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var reading sync.WaitGroup
	defer reading.Wait()
	defer stop()
	var readers []*reader
	for _, replica := range r.replicas {
		for _, s := range r.resources {
			d := &reader{replica: replica, lostResource: s}
			readers = append(readers, d)
			reading.Go(func() { r.read(ctx, d) })
		}
	}
	member := r.members[0]
	member.Kill()
	if err := os.RemoveAll(member.Config.Dir); err != nil {
		t.Fatal(err)
	}
	if _, err := snapshot.Restore(t.Context(), snapshot.RestoreConfig{Path: backup, Dir: member.Config.Dir, Member: snapshot.Member{
		Name: member.Config.Name, Peer: member.Config.Peer, Cluster: member.Config.Cluster, Token: "etcd-cluster", // the default token, so that all IDs stay
	}}); err != nil {
		t.Fatal(err)
	}
	if err := member.Start(); err != nil {
		t.Fatal(err)
	}
	member.AwaitReady(t)
	r.served.Store(true)
	for i, s := range r.resources {
		s.revisions = saved[i]
	}
	for _, d := range readers {
		d.Eventually(t, "reads "+d.plural, func() error {
			if d.served.Load() < 10 {
				return errors.New("too few reads")
			}
			return nil
		})
		if shown := d.shown.Load(); shown != nil {
			t.Errorf("a consistent read of %s returned a lost object: %s", d.plural, *shown)
		}
	}
	stop() // the server accepts revisions that it has returned since the restore
	reading.Wait()
	equal("the restored objects") // after this no informer lists, so no list returns a revision that checkLost requests
	r.checkLost(lost)
	for _, s := range r.resources {
		r.change(s, later, 1) // so that the new history has revisions of the lost one
	}
	r.checkLost(lost)
	equal("the restored and later objects")
	for i, s := range r.resources {
		r.checkLater(r.replicas[i%2], s)
	}
}

// checkLost requests revisions of the lost history, and revisions of no history, from every replica.
func (r *restoring) checkLost(lost int64) {
	r.Helper()
	for _, replica := range r.replicas {
		for _, s := range r.resources {
			for _, revision := range []int64{lost - 300, lost - 150, lost, lost + 100_000} {
				path := fmt.Sprintf("%s?resourceVersion=%d&", s.path(), revision)
				if err := r.expired(replica, path+"watch=1&timeoutSeconds=3"); err != nil {
					r.Error(err)
				}
				if err := r.expired(replica, path+"resourceVersionMatch=Exact&labelSelector=of%3D"+gone); err != nil {
					r.Error(err)
				}
			}
		}
	}
}

// checkLater lists and watches later changes, as new clients do.
func (r *restoring) checkLater(from *replica, s *lostResource) {
	r.Helper()
	a := from.send(request{method: http.MethodGet, path: s.path() + "?limit=1&labelSelector=of%3D" + later})
	listed, err := decode[list](a.body)
	if err != nil || a.code != http.StatusOK {
		r.Fatal(a.code, a.err, err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), proctest.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s%s?watch=1&resourceVersion=%d", from.url, s.path(), listed.Metadata.revision()), nil)
	if err != nil {
		r.Fatal(err)
	}
	resp, err := from.client.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer resp.Body.Close()
	at := r.write(s, later, s.name(5))
	if got := readWatch(io.Reader(resp.Body), 1, nil); !slices.Equal(got.revisions, []int64{at}) {
		r.Errorf("a watch of %s from the revision of a list sent %v, want %d", s.plural, got, at)
	}
}
