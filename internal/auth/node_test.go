package auth

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	corefuzzer "k8s.io/kubernetes/pkg/apis/core/fuzzer"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/proctest"
)

// refersTo has every field that node.Graph.AddPod reads of a pod.
type refersTo struct {
	Namespace, Name, UID, Node, Account string
	Annotations                         map[string]string
	Secrets, ConfigMaps                 []string
	Volumes                             []corev1.Volume
	Claims                              []corev1.PodResourceClaim
	Statuses                            []corev1.PodResourceClaimStatus
	Extended                            *corev1.PodExtendedResourceClaimStatus
}

func refers(pod *corev1.Pod) string {
	r := refersTo{
		Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID), Node: pod.Spec.NodeName, Account: pod.Spec.ServiceAccountName,
		Annotations: pod.Annotations, Volumes: pod.Spec.Volumes, Claims: pod.Spec.ResourceClaims,
		Statuses: pod.Status.ResourceClaimStatuses, Extended: pod.Status.ExtendedResourceClaimStatus,
	}
	secrets, configMaps := sets.New[string](), sets.New[string]()
	podutil.VisitPodSecretNames(pod, func(name string) bool { secrets.Insert(name); return true })
	podutil.VisitPodConfigmapNames(pod, func(name string) bool { configMaps.Insert(name); return true })
	r.Secrets, r.ConfigMaps = sets.List(secrets), sets.List(configMaps)
	text, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// TestMaskKeepsWhatTheGraphReads checks that masking a random pod keeps everything that AddPod reads.
func TestMaskKeepsWhatTheGraphReads(t *testing.T) {
	filler := fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, corefuzzer.Funcs), rand.NewSource(1), legacyscheme.Codecs)
	keep, whole := newPodMask()
	for range 500 {
		var pod, masked corev1.Pod
		filler.Fill(&pod)
		full, err := pod.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		part, err := appendMasked(nil, full, keep, whole)
		if err != nil {
			t.Fatal(err)
		}
		if err := masked.Unmarshal(part); err != nil {
			t.Fatal(err)
		}
		var decoded corev1.Pod
		if err := decoded.Unmarshal(full); err != nil {
			t.Fatal(err)
		}
		if got, want := refers(&masked), refers(&decoded); got != want {
			t.Fatalf("masked pod:\n%s\nwhole pod:\n%s", got, want)
		}
		if masked.ManagedFields != nil || !reflect.DeepEqual(masked.Spec.Tolerations, []corev1.Toleration(nil)) {
			t.Fatal("the masked pod has a field that AddPod does not read")
		}
	}
}

// FuzzAppendMasked checks that masking a masked pod does not change it.
func FuzzAppendMasked(f *testing.F) {
	f.Add([]byte("\n\x03\n\x01a"))
	f.Add([]byte{0x12, 0xff})
	keep, whole := newPodMask()
	f.Fuzz(func(t *testing.T, message []byte) {
		part, err := appendMasked(nil, message, keep, whole)
		if err == nil {
			if again, err := appendMasked(nil, part, keep, whole); err != nil || string(again) != string(part) {
				t.Errorf("masking %x again: got %x, error %v", part, again, err)
			}
		}
	})
}

// stored returns pod as a cached object.
func stored(t *testing.T, schema *cache.ResourceSchema, revision int64, pod *corev1.Pod) *cache.Object {
	t.Helper()
	body, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return cache.NewObject(cache.ObjectConfig{Key: pod.Namespace + "/" + pod.Name, Revision: revision, Body: body}, schema)
}

// TestGraphFollowsPods checks that a node may read the objects that its pods refer to, until the pods are gone.
func TestGraphFollowsPods(t *testing.T) {
	g := newGraph()
	g.known = make(map[string]podOnNode)
	nodes := node.NewAuthorizer(g.graph, nodeidentifier.NewDefaultNodeIdentifier(), bootstrappolicy.NodeRules())
	schema := cache.NewResourceSchema("pods", nil)
	may := func(node, secret string) bool {
		decision, _, err := nodes.Authorize(t.Context(), authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: "system:node:" + node, Groups: []string{user.NodesGroup}},
			Verb: "get", Namespace: "x", APIVersion: "v1", Resource: "secrets", Name: secret, ResourceRequest: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		return decision == authorizer.DecisionAllow
	}
	expect := func(what string, of map[[2]string]bool) {
		t.Helper()
		for pair, want := range of {
			if got := may(pair[0], pair[1]); got != want {
				t.Errorf("%s: node %s may read %s: %v", what, pair[0], pair[1], got)
			}
		}
	}
	pod := func(on string, secrets ...string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p", UID: "1"}, Spec: corev1.PodSpec{NodeName: on}}
		for _, s := range secrets {
			p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
		}
		return p
	}
	g.update(stored(t, schema, 1, pod("", "a")))
	expect("unscheduled", map[[2]string]bool{{"n1", "a"}: false})
	g.update(stored(t, schema, 2, pod("n1", "a")))
	expect("scheduled", map[[2]string]bool{{"n1", "a"}: true, {"n2", "a"}: false, {"n1", "b"}: false})
	changed := pod("n1", "a")
	changed.Status.Phase, changed.ResourceVersion = corev1.PodRunning, "7"
	known := g.known["x/p"]
	g.update(stored(t, schema, 3, changed))
	if g.known["x/p"] != known {
		t.Error("a change of a field that the graph does not read updated the graph")
	}
	g.update(stored(t, schema, 4, pod("n1", "b")))
	expect("other secret", map[[2]string]bool{{"n1", "a"}: false, {"n1", "b"}: true})
	g.drop("x/p")
	expect("deleted", map[[2]string]bool{{"n1", "b"}: false})
	g.update(stored(t, schema, 5, pod("n2", "b")))
	expect("created again on another node", map[[2]string]bool{{"n1", "b"}: false, {"n2", "b"}: true})
	broken := stored(t, schema, 6, pod("n2", "c"))
	g.update(cache.NewObject(cache.ObjectConfig{Key: broken.Key(), Revision: 6, Body: broken.Body()[:len(broken.Body())-1]}, schema))
	expect("unreadable", map[[2]string]bool{{"n2", "b"}: true, {"n2", "c"}: false})
	g.update(stored(t, schema, 7, pod("")))
	expect("replaced by a pod without a node", map[[2]string]bool{{"n2", "b"}: false})
}

// TestLossesConcernNodes checks that if a pod changes, moves or is deleted, a loss is counted for its node only.
func TestLossesConcernNodes(t *testing.T) {
	g := newGraph()
	g.known = make(map[string]podOnNode)
	schema := cache.NewResourceSchema("pods", nil)
	var names []string // no two names share a counter
	for i := 0; len(names) < 2; i++ {
		name := fmt.Sprint("n", i)
		if len(names) == 0 || g.losses.of(name) != g.losses.of(names[0]) {
			names = append(names, name)
		}
	}
	here, other := names[0], names[1]
	put := func(revision int64, on, secret string) func() {
		return func() {
			g.update(stored(t, schema, revision, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p", UID: "1"},
				Spec:       corev1.PodSpec{NodeName: on, ImagePullSecrets: []corev1.LocalObjectReference{{Name: secret}}},
			}))
		}
	}
	for _, step := range []struct {
		name        string
		do          func()
		here, other uint64
	}{
		{"a pod is created", put(1, here, "a"), 0, 0},
		{"nothing changes", put(2, here, "a"), 0, 0},
		{"it refers to another secret", put(3, here, "b"), 1, 0},
		{"a pod of the same name is created on another node", put(4, other, "b"), 1, 0},
		{"it is deleted", func() { g.drop("x/p") }, 0, 1},
		{"it is deleted again", func() { g.drop("x/p") }, 0, 0},
		{"a volume changes", func() { g.losses.count("") }, 1, 1},
		{"a volume of a node changes", func() { g.losses.count(here) }, 1, 0},
	} {
		count := func(node string) uint64 {
			return g.losses.node(&user.DefaultInfo{Name: "system:node:" + node, Groups: []string{user.NodesGroup}})
		}
		before, beforeOther := count(here), count(other)
		step.do()
		if got, gotOther := count(here)-before, count(other)-beforeOther; got != step.here || gotOther != step.other {
			t.Errorf("%s: %d and %d losses, want %d and %d", step.name, got, gotOther, step.here, step.other)
		}
	}
}

// TestInformedLossesConcernNodes checks that a change of a VolumeAttachment counts a loss for its node, and a change of
// a PersistentVolume for all nodes.
func TestInformedLossesConcernNodes(t *testing.T) {
	g := newGraph()
	attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n1"}}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
	client := fake.NewClientset(attachment, volume)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	all := g.informers(client)
	for _, i := range all {
		running.Go(func() { i.informer.RunWithContext(ctx) })
		<-i.synced
	}
	awaitWatches(t, client, len(all))
	if n := g.losses.of("n1").Load() + g.losses.any.Load(); n != 0 {
		t.Fatalf("%d losses before any change, want 0", n)
	}
	expect := func(what string, node, any uint64) {
		t.Helper()
		proctest.Eventually(t, what, func() error {
			if n, a := g.losses.of("n1").Load(), g.losses.any.Load(); n != node || a != any {
				return fmt.Errorf("the node has %d losses and any has %d, want %d and %d", n, a, node, any)
			}
			return nil
		})
	}
	changed := attachment.DeepCopy()
	changed.Labels = map[string]string{"changed": ""}
	if _, err := client.StorageV1().VolumeAttachments().Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("the attachment changes", 1, 0)
	if err := client.StorageV1().VolumeAttachments().Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("the attachment is deleted", 2, 0)
	if err := client.CoreV1().PersistentVolumes().Delete(ctx, "v", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("the volume is deleted", 2, 1)
}

// awaitWatches waits until n watches of client are open. A watch of a fake client does not get earlier changes, so a
// write between an informer's list and its watch would be lost.
func awaitWatches(t testing.TB, client *fake.Clientset, n int) {
	t.Helper()
	proctest.Eventually(t, "informers watch", func() error {
		watches := 0
		for _, action := range client.Actions() {
			if action.GetVerb() == "watch" {
				watches++
			}
		}
		if watches < n {
			return fmt.Errorf("%d of %d watches are open", watches, n)
		}
		return nil
	})
}
