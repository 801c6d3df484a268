package managedfields

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/larder-io/larder/internal/registry/registrytest"
)

// TestManagedFieldsOfUpdatesMatchUpstream makes many small updates of objects of every kind in every version, as
// several managers. It compares the managedFields, computed or copied, with upstream's.
func TestManagedFieldsOfUpdatesMatchUpstream(t *testing.T) {
	t.Parallel()
	bases, steps, enough := 1, 20, 1000
	if testing.Short() {
		steps, enough = 7, 200 // still every kind and version
	}
	upstream, own := newManagers(t, managedfields.NewDefaultFieldManager), newManagers(t, newManager)
	copied, kept := 0, 0
	for kind, versions := range kinds(t, upstream.types) {
		for _, version := range versions {
			of := version.WithKind(kind.Kind)
			updates := newCache(own, of)
			random := rand.New(rand.NewSource(11))
			for range bases {
				h := &history{t: t, kind: kind, versions: versions, random: random}
				live := h.object()
				identify(t, live, "")
				if live = created(t, upstream, of, live); live == nil {
					continue
				}
				identify(t, live, "uid")
				for step := range steps {
					next := live.DeepCopyObject()
					accessor(t, next).SetManagedFields(nil)
					for range 1 + random.Intn(2) {
						registrytest.Mutate(next, random)
					}
					identify(t, next, "uid")
					who := []string{"creator", "kubelet"}[random.Intn(2)]
					want := written(upstream, of, live, next, who)
					if want == nil {
						break
					}
					blankTimes(t, want)
					for again := range 3 {
						before := live.DeepCopyObject()
						if again == 2 { // parts that are equal in both do not matter
							label(t, before, next, step)
							want = written(upstream, of, before, next, who)
							if want == nil {
								break
							}
							blankTimes(t, want)
						}
						got := next.DeepCopyObject()
						if knowsUpdate(t, updates, before, got, who) {
							copied++
						}
						updates.Update(before, got, who)
						blankTimes(t, got)
						compare(t, of, want, got)
					}
					live = want
					if live == nil {
						break
					}
				}
			}
			kept += len(updates.results)
		}
	}
	t.Logf("%d records were copied of others, of %d changes", copied, kept)
	if copied < 2*enough || kept < enough {
		t.Errorf("%d records were copied of others, of %d changes: too few to tell anything", copied, kept)
	}
}

// label sets the same annotation in both objects.
func label(t *testing.T, live, next runtime.Object, step int) {
	t.Helper()
	for _, obj := range []runtime.Object{live, next} {
		object := accessor(t, obj)
		object.SetGeneration(int64(step))
		object.SetSelfLink("the same")
	}
}

func identify(t *testing.T, obj runtime.Object, uid types.UID) {
	t.Helper()
	accessor(t, obj).SetUID(uid)
}

func accessor(t *testing.T, obj runtime.Object) metav1.Object {
	t.Helper()
	object, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// written returns next with the managedFields of upstream's field manager, nil if that panics.
func written(by *managers, kind schema.GroupVersionKind, live, next runtime.Object, who string) (made runtime.Object) {
	defer func() {
		if recover() != nil {
			made = nil
		}
	}()
	return by.of(kind).UpdateNoErrors(live.DeepCopyObject(), next.DeepCopyObject(), who)
}

func knowsUpdate(t *testing.T, u *Cache, live, obj runtime.Object, who string) bool {
	t.Helper()
	live, obj = live.DeepCopyObject(), obj.DeepCopyObject()
	stored, err := meta.Accessor(live)
	if err != nil {
		t.Fatal(err)
	}
	kind := u.types.known(u.kind)
	return kind != nil && u.result(u.updateKey(kind, live, obj, stored.GetManagedFields(), who, new(identifiers))) != nil
}

// TestUpdatesOfOtherAddressesAreKnown checks that the result of an update is reused for an object with other
// addresses and owners, if these are in the same order.
func TestUpdatesOfOtherAddressesAreKnown(t *testing.T) {
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	upstream, own := newManagers(t, managedfields.NewDefaultFieldManager), newManagers(t, newManager)
	updates := newCache(own, kind)
	pod := func(owner string, ips ...string) *core.Pod {
		p := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "uid", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: types.UID(owner)}}}}
		for _, ip := range ips {
			p.Status.PodIPs = append(p.Status.PodIPs, core.PodIP{IP: ip})
		}
		return p
	}
	for _, c := range []struct {
		owner   string
		ips     []string
		learned bool
	}{
		{"a-1", []string{"10.0.0.1", "fd00::1"}, true}, // except the first, which determines the kind
		{"a-1", []string{"10.0.0.1", "fd00::1"}, true},
		{"a-2", []string{"10.0.0.22", "fd00::2"}, false},
		{"a-3", []string{"fd00::3", "10.0.0.3"}, true},   // another order
		{"10.", []string{"20.0.0.1", "fd00::1"}, true},   // the owner comes first
		{"a\"b", []string{"10.0.0.1", "fd00::1"}, false}, // is escaped in the record
		{"a-4", []string{"10.0.0.4", "fd00::4"}, false},
	} {
		before := len(updates.results)
		var live runtime.Object = pod(c.owner)
		live = upstream.of(kind).UpdateNoErrors(&corev1.Pod{}, live, "creator")
		next := pod(c.owner, c.ips...)
		for _, who := range []string{"kubelet", "kubelet", "creator"} {
			want, got := written(upstream, kind, live, next, who), next.DeepCopy()
			updates.Update(live, got, who)
			blankTimes(t, want)
			blankTimes(t, got)
			if !apiequality.Semantic.DeepEqual(want, runtime.Object(got)) {
				wantMeta, _ := meta.Accessor(want)
				t.Fatalf("%v: managers\n%s\nwant\n%s", c, text(got), text(wantMeta))
			}
			live, next = want, next.DeepCopy()
			next.Status.PodIPs = next.Status.PodIPs[:1]
			next.Status.PodIPs[0].IP += "0"
		}
		if learned := len(updates.results) > before; learned != c.learned {
			t.Errorf("%v: learned %t, want %t", c, learned, c.learned)
		}
	}
}

// TestUpdatesAreBounded checks that clients cannot make the cache exceed its limits.
func TestUpdatesAreBounded(t *testing.T) {
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	own := newManagers(t, newManager)
	updates := newCache(own, kind)
	peak := 0
	for i := range 2 * maxResults {
		key := fmt.Sprintf("%s-%d", strings.Repeat("x", 4000), i)
		live := own.of(kind).UpdateNoErrors(&corev1.ConfigMap{}, &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "uid"}, Data: map[string]string{key: "a"}}, "creator")
		updates.Update(live, &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "uid"}, Data: map[string]string{key: "b"}}, "other")
		size := 0
		for key, becomes := range updates.results {
			size += len(key)
			for _, b := range becomes {
				size += len(b.entry.FieldsV1.GetRawBytes())
			}
		}
		if size != updates.bytes || len(updates.results) > maxResults {
			t.Fatalf("%d records of %d bytes are remembered, %d counted", len(updates.results), size, updates.bytes)
		}
		peak = max(peak, size)
	}
	if peak > maxBytes || peak < maxBytes/2 {
		t.Errorf("what is remembered takes up to %d bytes, want at most %d and half of that", peak, maxBytes)
	}
	long := map[string]string{strings.Repeat("x", maxKey): "a"}
	known := len(updates.results)
	live := own.of(kind).UpdateNoErrors(&corev1.ConfigMap{}, &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "uid"}, Data: long}, "creator")
	updates.Update(live, &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "uid"}}, "other")
	if len(updates.results) != known {
		t.Error("a record that is too long is remembered")
	}
}
