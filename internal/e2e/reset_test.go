package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	definitions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/proctest"
)

// resettable is a server with checkpoints, and clients for it.
type resettable struct {
	*process
	t       *testing.T
	core    kubernetes.Interface
	custom  dynamic.Interface
	defined definitions.Interface
}

func newResettable(t *testing.T, args ...string) *resettable {
	t.Helper()
	p := serve(t, append([]string{"--unsafe-no-fsync", "--checkpoints"}, args...)...)
	config := rest.CopyConfig(p.config())
	config.QPS = -1
	return &resettable{p, t, kubernetes.NewForConfigOrDie(config), dynamic.NewForConfigOrDie(config), definitions.NewForConfigOrDie(config)}
}

func (r *resettable) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// checkpoint takes a checkpoint.
func (r *resettable) checkpoint() {
	r.t.Helper()
	r.must(r.core.Discovery().RESTClient().Post().AbsPath("/larder/checkpoints/clean").Do(r.t.Context()).Error())
}

// outcome is what a reset reports.
type outcome struct {
	Deleted, Restored, Changed int
	Revision                   int64
	Warnings                   []string
}

// reset resets the server to the checkpoint.
func (r *resettable) reset() outcome {
	r.t.Helper()
	raw, err := r.core.Discovery().RESTClient().Post().AbsPath("/larder/checkpoints/clean/reset").DoRaw(r.t.Context())
	if err != nil {
		r.t.Fatalf("reset: %v %s", err, raw)
	}
	var done outcome
	r.must(json.Unmarshal(raw, &done))
	return done
}

// define creates a CRD in the group x.io and returns a client for its objects.
func (r *resettable) define(plural string) dynamic.NamespaceableResourceInterface {
	r.t.Helper()
	yes := true
	_, err := r.defined.ApiextensionsV1().CustomResourceDefinitions().Create(r.t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + ".x.io"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "x.io", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: "Kind-" + plural},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &yes}},
			}},
		},
	}, metav1.CreateOptions{})
	r.must(err)
	proctest.Eventually(r.t, plural+" are served", func() error {
		defined, err := r.defined.ApiextensionsV1().CustomResourceDefinitions().Get(r.t.Context(), plural+".x.io", metav1.GetOptions{})
		if err == nil && !apihelpers.IsCRDConditionTrue(defined, apiextensionsv1.Established) {
			err = fmt.Errorf("%v", defined.Status.Conditions)
		}
		return err
	})
	return r.objects(plural)
}

func (r *resettable) objects(plural string) dynamic.NamespaceableResourceInterface {
	return r.custom.Resource(schema.GroupVersionResource{Group: "x.io", Version: "v1", Resource: plural})
}

// make creates an object of a kind in x.io.
func (r *resettable) make(ctx context.Context, plural, namespace, name string, finalizers ...string) error {
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "x.io/v1", "kind": "Kind-" + plural}}
	object.SetName(name)
	object.SetFinalizers(finalizers)
	_, err := r.objects(plural).Namespace(namespace).Create(ctx, object, metav1.CreateOptions{})
	return err
}

// undefine deletes a CRD, and waits until it is deleted.
func (r *resettable) undefine(plural string) {
	r.t.Helper()
	crds := r.defined.ApiextensionsV1().CustomResourceDefinitions()
	if err := crds.Delete(r.t.Context(), plural+".x.io", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		r.must(err)
	}
	r.gone(plural, func() error {
		_, err := crds.Get(r.t.Context(), plural+".x.io", metav1.GetOptions{})
		return err
	})
}

func (r *resettable) gone(what string, get func() error) {
	r.t.Helper()
	proctest.Eventually(r.t, what+" is gone", func() error {
		if err := get(); !apierrors.IsNotFound(err) {
			return fmt.Errorf("%v", err)
		}
		return nil
	})
}

// configMaps creates n ConfigMaps.
func (r *resettable) configMaps(namespace, prefix string, n int, owners ...metav1.OwnerReference) *corev1.ConfigMap {
	r.t.Helper()
	var last *corev1.ConfigMap
	for i := range n {
		var err error
		last, err = r.core.CoreV1().ConfigMaps(namespace).Create(r.t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(prefix, i), OwnerReferences: owners},
		}, metav1.CreateOptions{})
		r.must(err)
	}
	return last
}

func (r *resettable) namespace(name string) {
	r.t.Helper()
	_, err := r.core.CoreV1().Namespaces().Create(r.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	r.must(err)
	proctest.Eventually(r.t, name+" has its service account", func() error {
		if _, err := r.core.CoreV1().ConfigMaps(name).Get(r.t.Context(), "kube-root-ca.crt", metav1.GetOptions{}); err != nil {
			return err
		}
		_, err := r.core.CoreV1().ServiceAccounts(name).Get(r.t.Context(), "default", metav1.GetOptions{})
		return err
	})
}

// resync makes every controller that deletes objects do so once more. Deletions that began before are then done, or
// will never be done.
func (r *resettable) resync(round int) {
	r.t.Helper()
	name := fmt.Sprint("settled-", round)
	r.namespace(name)
	r.configMaps(name, "c", 3)
	r.must(r.core.CoreV1().Namespaces().Delete(r.t.Context(), name, metav1.DeleteOptions{}))
	r.gone("the namespace "+name, func() error {
		_, err := r.core.CoreV1().Namespaces().Get(r.t.Context(), name, metav1.GetOptions{})
		return err
	})
	r.configMaps("default", name, 1, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "nobody", UID: "nobody"})
	r.gone("the object without an owner", func() error {
		_, err := r.core.CoreV1().ConfigMaps("default").Get(r.t.Context(), name+"0", metav1.GetOptions{})
		return err
	})
	r.define("settled")
	r.must(r.make(r.t.Context(), "settled", "default", "a"))
	r.undefine("settled")
}

// TestResetOutlastsDeletions checks that restored objects stay, whatever was being deleted during the reset: a
// namespace, a CRD, a collection, owned objects. It must be possible to delete them again.
func TestResetOutlastsDeletions(t *testing.T) {
	r := newResettable(t, "--test-controllers")
	ctx, core := t.Context(), r.core.CoreV1()
	r.namespace("full")
	r.namespace("collected")
	r.configMaps("full", "c", 100)
	r.configMaps("collected", "c", 200)
	r.define("boxes")
	for i := range 100 {
		r.must(r.make(ctx, "boxes", []string{"full", "default", "collected"}[i%3], fmt.Sprint("b", i)))
	}
	r.must(r.make(ctx, "boxes", "default", "stuck", "x.io/stuck"))
	owner := r.configMaps("default", "owner", 1)
	r.configMaps("default", "owned", 100, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID})
	r.resync(0) // the garbage collector has then seen them
	want := saved(t, r.process, r.checkpoint)
	crds := r.defined.ApiextensionsV1().CustomResourceDefinitions()
	deletions := map[string]func() error{
		"a namespace": func() error { return core.Namespaces().Delete(ctx, "full", metav1.DeleteOptions{}) },
		"a CRD":       func() error { return crds.Delete(ctx, "boxes.x.io", metav1.DeleteOptions{}) },
		"a collection": func() error {
			return core.ConfigMaps("collected").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		},
		"an owner": func() error {
			background := metav1.DeletePropagationBackground
			return core.ConfigMaps("default").Delete(ctx, owner.Name, metav1.DeleteOptions{PropagationPolicy: &background})
		},
	}
	names := []string{"a namespace", "a CRD", "a collection", "an owner"}
	for round := range 8 {
		var begun sync.WaitGroup
		for i, name := range names {
			if round < len(names) && i != round { // first one of them alone, then all at once
				continue
			}
			begun.Go(func() {
				if err := deletions[name](); err != nil && !apierrors.IsConflict(err) {
					t.Errorf("deleting %s: %v", name, err)
				}
			})
		}
		if round%2 == 0 {
			begun.Wait()
		}
		done := r.reset()
		begun.Wait()
		if len(done.Warnings) > 0 {
			t.Errorf("round %d: the reset reports %+v", round, done)
		}
		r.reset() // restores objects that the deletions did not reach before the first reset
		r.resync(1 + round)
		if err := same(everything(t, r.process), want); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	_, err := r.objects("boxes").Namespace("default").Patch(ctx, "stuck", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	r.must(err)
	r.undefine("boxes")
}

// TestResetEndsServing checks the state after a reset has returned. Deleted CRDs and namespaces serve no request, no
// object that was being created remains, and restored resources are served.
func TestResetEndsServing(t *testing.T) {
	r := newResettable(t)
	ctx := t.Context()
	r.define("kept")
	r.must(r.make(ctx, "kept", "default", "a"))
	r.checkpoint()
	for round := range 20 {
		r.define("bags")
		r.must(r.make(ctx, "bags", "default", "before"))
		_, err := r.core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{})
		r.must(err)
		if round%2 == 0 {
			r.undefine("kept")
		}
		var stopped atomic.Bool // requests are not canceled, because the server would continue to serve them
		var makers sync.WaitGroup
		for i := range 4 {
			makers.Go(func() {
				for n := 0; !stopped.Load(); n++ {
					name := fmt.Sprintf("m-%d-%d", i, n)
					_ = r.make(ctx, "bags", "default", name) // fails once the CRD is deleted
					_, _ = r.core.CoreV1().ConfigMaps("new").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
				}
			})
		}
		r.reset()
		if err := r.make(ctx, "bags", "default", "after"); !apierrors.IsNotFound(err) {
			t.Errorf("round %d: creating a bag after the reset: %v", round, err)
		}
		_, err = r.core.CoreV1().ConfigMaps("new").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "after"}}, metav1.CreateOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("round %d: creating a ConfigMap in a deleted namespace: %v", round, err)
		}
		if err := r.make(ctx, "kept", "default", "b"); err != nil {
			t.Errorf("round %d: a restored resource is not served: %v", round, err)
		}
		stopped.Store(true)
		makers.Wait()
		bags, err := r.define("bags").List(ctx, metav1.ListOptions{})
		r.must(err)
		if len(bags.Items) > 0 {
			t.Errorf("round %d: a new CRD begins with %d bags: %s", round, len(bags.Items), bags.Items[0].GetName())
		}
		_, err = r.core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{})
		r.must(err)
		maps, err := r.core.CoreV1().ConfigMaps("new").List(ctx, metav1.ListOptions{})
		r.must(err)
		if len(maps.Items) > 0 {
			t.Errorf("round %d: a new namespace begins with %d ConfigMaps: %s", round, len(maps.Items), maps.Items[0].Name)
		}
		r.reset()
	}
}

// TestResetEndsRouting checks that requests do not reach an APIService that a reset deletes.
func TestResetEndsRouting(t *testing.T) {
	r := newResettable(t)
	r.checkpoint()
	resource := r.custom.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	get := func() error {
		return r.core.Discovery().RESTClient().Get().AbsPath("/apis/remote.x.io/v1/things").Do(t.Context()).Error()
	}
	for round := range 20 {
		_, err := resource.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1.remote.x.io"},
			"spec": map[string]any{
				"group": "remote.x.io", "version": "v1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
				"insecureSkipTLSVerify": true, "service": map[string]any{"namespace": "default", "name": "nobody"},
			},
		}}, metav1.CreateOptions{})
		r.must(err)
		proctest.Eventually(t, "requests are routed", func() error {
			if err := get(); !apierrors.IsServiceUnavailable(err) {
				return fmt.Errorf("%v", err)
			}
			return nil
		})
		r.reset()
		if err := get(); !apierrors.IsNotFound(err) {
			t.Errorf("round %d: a request after the reset: %v", round, err)
		}
	}
}

// TestResetWarnsOfControllersItCannotStop checks that a reset warns of controllers that it cannot stop and that may
// delete restored objects.
func TestResetWarnsOfControllersItCannotStop(t *testing.T) {
	r := newResettable(t)
	ctx := t.Context()
	_, err := r.core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "full"}}, metav1.CreateOptions{})
	r.must(err)
	r.checkpoint()
	expect := func(parts ...string) {
		t.Helper()
		r.must(r.core.CoreV1().Namespaces().Delete(ctx, "full", metav1.DeleteOptions{}))
		proctest.Eventually(t, "the server has seen the deletion", func() error {
			_, err := r.core.CoreV1().ConfigMaps("full").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}}, metav1.CreateOptions{})
			if !apierrors.IsForbidden(err) {
				return fmt.Errorf("%v", err)
			}
			return nil
		})
		got := strings.Join(r.reset().Warnings, "\n")
		if slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(got, part) }) {
			t.Errorf("the reset warned of %q, want %q", got, parts)
		}
	}
	expect("the controller that empties the namespaces full is not part of this server")
	k := newKubectl(t, r.kubeconfig(), "kube-system")
	k.must(t, `{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "kube-controller-manager"},
		"spec": {"holderIdentity": "host_1", "leaseDurationSeconds": 3600, "renewTime": "2999-01-01T00:00:00.000000Z"}}`, "create", "-f", "-")
	r.checkpoint()
	expect("kube-controller-manager host_1 was not stopped", "namespaces full")
	k.must(t, "", "-n", "default", "create", "configmap", "new")
	if out := larder(t, "reset", "clean", "--kubeconfig", r.kubeconfig()); strings.Contains(out, "warning") {
		t.Errorf("a reset that restores nothing warns: %s", out)
	}
	r.must(r.core.CoreV1().Namespaces().Delete(ctx, "full", metav1.DeleteOptions{}))
	if out := larder(t, "reset", "clean", "--kubeconfig", r.kubeconfig()); !strings.Contains(out, "! warning: kube-controller-manager host_1") {
		t.Errorf("no warning in %q", out)
	}
}
