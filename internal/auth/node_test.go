package auth

import (
	"encoding/json"
	"math/rand"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	corefuzzer "k8s.io/kubernetes/pkg/apis/core/fuzzer"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/larder-io/larder/cache"
)

// refersTo is all that node.Graph.AddPod reads of a pod.
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

// TestMaskKeepsWhatTheGraphReads: of any pod.
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
			t.Fatalf("masked:\n%s\nfull:\n%s", got, want)
		}
		if masked.ManagedFields != nil || !reflect.DeepEqual(masked.Spec.Tolerations, []corev1.Toleration(nil)) {
			t.Fatal("what nobody reads is kept")
		}
	}
}

func FuzzAppendMasked(f *testing.F) {
	f.Add([]byte("\n\x03\n\x01a"))
	f.Add([]byte{0x12, 0xff})
	keep, whole := newPodMask()
	f.Fuzz(func(t *testing.T, message []byte) {
		part, err := appendMasked(nil, message, keep, whole)
		if err == nil {
			if again, err := appendMasked(nil, part, keep, whole); err != nil || string(again) != string(part) {
				t.Errorf("%x is masked to %x, %v", part, again, err)
			}
		}
	})
}

// stored is a pod as the cache has it.
func stored(t *testing.T, schema *cache.Schema, revision int64, pod *corev1.Pod) *cache.Object {
	t.Helper()
	body, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return cache.NewObject(cache.ObjectConfig{Key: pod.Namespace + "/" + pod.Name, Revision: revision, Body: body}, schema)
}

// TestGraphFollowsPods: a node may read what its pods refer to, as long as they are its.
func TestGraphFollowsPods(t *testing.T) {
	g := newGraph()
	g.known = make(map[string]uint64)
	nodes := node.NewAuthorizer(g.graph, nodeidentifier.NewDefaultNodeIdentifier(), bootstrappolicy.NodeRules())
	schema := cache.NewSchema("pods", nil)
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
		t.Error("a change that the graph does not read is taken for one that it reads")
	}
	g.update(stored(t, schema, 4, pod("n1", "b")))
	expect("other secret", map[[2]string]bool{{"n1", "a"}: false, {"n1", "b"}: true})
	g.drop("x/p")
	expect("deleted", map[[2]string]bool{{"n1", "b"}: false})
	g.update(stored(t, schema, 5, pod("n2", "b")))
	expect("made again elsewhere", map[[2]string]bool{{"n1", "b"}: false, {"n2", "b"}: true})
	broken := stored(t, schema, 6, pod("n2", "c"))
	g.update(cache.NewObject(cache.ObjectConfig{Key: broken.Key(), Revision: 6, Body: broken.Body()[:len(broken.Body())-1]}, schema))
	expect("unreadable", map[[2]string]bool{{"n2", "b"}: true, {"n2", "c"}: false})
	g.update(stored(t, schema, 7, pod("")))
	expect("replaced by one without a node", map[[2]string]bool{{"n2", "b"}: false})
}
