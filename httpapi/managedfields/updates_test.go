package managedfields

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
	steps, enough := 20, 1000
	if testing.Short() {
		steps, enough = 7, 200 // still every kind and version
	}
	upstream, own := newManagers(t, managedfields.NewDefaultFieldManager), newManagers(t, newManager)
	hits, kept := 0, 0
	for kind, versions := range kinds(t, upstream.types) {
		for _, version := range versions {
			of := version.WithKind(kind.Kind)
			updates := newCache(own, of)
			random := rand.New(rand.NewSource(11))
			h := &history{t: t, kind: kind, versions: versions, random: random}
			live := h.object()
			accessor(t, live).SetUID("")
			if live = created(t, upstream, of, live); live == nil {
				continue
			}
			accessor(t, live).SetUID("uid")
			for step := range steps {
				next := live.DeepCopyObject()
				accessor(t, next).SetManagedFields(nil)
				for range 1 + random.Intn(2) {
					registrytest.Mutate(next, random)
				}
				accessor(t, next).SetUID("uid")
				manager := []string{"creator", "kubelet"}[random.Intn(2)]
				want := updated(upstream, of, live, next, manager)
				if want == nil {
					break
				}
				blankTimes(t, want)
				for again := range 3 {
					before := live.DeepCopyObject()
					if again == 2 {
						changeBoth(t, before, next, step)
						want = updated(upstream, of, before, next, manager)
						if want == nil {
							break
						}
						blankTimes(t, want)
					}
					got := next.DeepCopyObject()
					if hasUpdate(t, updates, before, got, manager) {
						hits++
					}
					updates.Update(before, got, manager)
					blankTimes(t, got)
					compare(t, of, want, got)
				}
				live = want
				if live == nil {
					break
				}
			}
			kept += len(updates.results)
		}
	}
	if hits < 2*enough || kept < enough {
		t.Errorf("%d of the results came from the caches, which have %d; want at least %d and %d", hits, kept, 2*enough, enough)
	}
}

// changeBoth sets fields to the same values in both objects. They must not change the result of the update.
func changeBoth(t *testing.T, live, next runtime.Object, step int) {
	t.Helper()
	for _, obj := range []runtime.Object{live, next} {
		object := accessor(t, obj)
		object.SetGeneration(int64(step))
		object.SetSelfLink("the same")
	}
}

// updated returns next with the managedFields of upstream's field manager, nil if that panics.
func updated(by *managers, kind schema.GroupVersionKind, live, next runtime.Object, manager string) (made runtime.Object) {
	defer func() {
		if recover() != nil {
			made = nil
		}
	}()
	return by.of(kind).UpdateNoErrors(live.DeepCopyObject(), next.DeepCopyObject(), manager)
}

// hasUpdate reports whether the cache has the managedFields of obj.
func hasUpdate(t *testing.T, u *Cache, live, obj runtime.Object, manager string) bool {
	t.Helper()
	live, obj = live.DeepCopyObject(), obj.DeepCopyObject()
	kind := u.types.known(u.kind)
	return kind != nil && u.result(u.updateKey(kind, live, obj, accessor(t, live).GetManagedFields(), manager, new(identifiers))) != nil
}

// TestResultsAreReusedForOtherAddresses checks that the result of an update is reused for an object with other addresses
// and owners, if these are in the same order.
func TestResultsAreReusedForOtherAddresses(t *testing.T) {
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
		owner string
		ips   []string
		added bool // to the cache
	}{
		{"a-1", []string{"10.0.0.1", "fd00::1"}, true}, // the first update only prepares the cache for the kind
		{"a-1", []string{"10.0.0.1", "fd00::1"}, true},
		{"a-2", []string{"10.0.0.22", "fd00::2"}, false},
		{"a-3", []string{"fd00::3", "10.0.0.3"}, true},   // another order
		{"10.", []string{"20.0.0.1", "fd00::1"}, true},   // the owner comes first
		{"a\"b", []string{"10.0.0.1", "fd00::1"}, false}, // is escaped in managedFields
		{"a-4", []string{"10.0.0.4", "fd00::4"}, false},
	} {
		before := len(updates.results)
		var live runtime.Object = pod(c.owner)
		live = upstream.of(kind).UpdateNoErrors(&corev1.Pod{}, live, "creator")
		next := pod(c.owner, c.ips...)
		for _, manager := range []string{"kubelet", "kubelet", "creator"} {
			want, got := updated(upstream, kind, live, next, manager), next.DeepCopy()
			updates.Update(live, got, manager)
			blankTimes(t, want)
			blankTimes(t, got)
			compare(t, c, want, got)
			live, next = want, next.DeepCopy()
			next.Status.PodIPs = next.Status.PodIPs[:1]
			next.Status.PodIPs[0].IP += "0"
		}
		if added := len(updates.results) > before; added != c.added {
			t.Errorf("%v: results were added to the cache: %t, want %t", c, added, c.added)
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
			t.Fatalf("%d results of %d bytes, want at most %d results of the counted %d bytes", len(updates.results), size, maxResults, updates.bytes)
		}
		peak = max(peak, size)
	}
	if peak > maxBytes || peak < maxBytes/2 {
		t.Errorf("the cache has up to %d bytes, want at most %d and at least half of that", peak, maxBytes)
	}
	long := map[string]string{strings.Repeat("x", maxKey): "a"}
	known := len(updates.results)
	live := own.of(kind).UpdateNoErrors(&corev1.ConfigMap{}, &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "uid"}, Data: long}, "creator")
	updates.Update(live, &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "uid"}}, "other")
	if len(updates.results) != known {
		t.Error("a result with a key that is too long was cached")
	}
}
