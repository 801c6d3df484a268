package testcontrollers_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	definitions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/larder-io/larder/cmd/larder/internal/server/servertest"
	"github.com/larder-io/larder/cmd/larder/internal/testcontrollers"
	"github.com/larder-io/larder/internal/e2e/e2etest"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv/kvtest"
)

// cluster is a server of another process and the controllers in this one.
type cluster struct {
	t           *testing.T
	config      *rest.Config
	client      kubernetes.Interface
	custom      dynamic.Interface
	definitions definitions.Interface
	controllers *testcontrollers.Controllers
}

// newCluster starts a server, but no controllers.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	server := proctest.New(t, "the server", proctest.Role(t, asServer, servertest.Config{Dir: dir, Port: proctest.Port(t), Modes: []string{"RBAC"}}))
	must(t, server.Start())
	server.Await(t, "ready after")
	config := e2etest.Config(t, filepath.Join(dir, "admin.kubeconfig"))
	c := &cluster{t: t, config: config, client: kubernetes.NewForConfigOrDie(config)}
	var err error
	c.custom, err = dynamic.NewForConfig(config)
	must(t, err)
	c.definitions, err = definitions.NewForConfig(config)
	must(t, err)
	return c
}

// control runs the controllers until the test ends or end is called.
func (c *cluster) control() (end func()) {
	c.t.Helper()
	controllers, err := testcontrollers.New(testcontrollers.Config{Client: c.config, RootCA: []byte("whom to trust")})
	must(c.t, err)
	end = kvtest.RunUntilEnd(c.t, controllers.Run)
	c.controllers = controllers
	bounded, stop := context.WithTimeout(c.t.Context(), proctest.Patience)
	defer stop()
	must(c.t, controllers.WaitReady(bounded))
	return end
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// gone waits until get finds nothing.
func (c *cluster) gone(what string, get func() error) {
	c.t.Helper()
	proctest.Eventually(c.t, what+" is gone", func() error {
		err := get()
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("got %v", err)
	})
}

// TestNamespacesGetWhatPodsNeed checks that the controllers create the objects that pods need in a namespace, and
// create them again after their deletion. The namespace is deleted with all its objects, including custom resources.
func TestNamespacesGetWhatPodsNeed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	core, ctx := c.client.CoreV1(), t.Context()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := core.Pods("default").Create(ctx, pod, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a pod without controllers: %v", err)
	}
	end := c.control()
	_, err := core.Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	must(t, err)
	_, err = core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	must(t, err)
	provided := func() error {
		trust, err := core.ConfigMaps("a").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		if err == nil && trust.Data["ca.crt"] != "whom to trust" {
			err = fmt.Errorf("pods are told to trust %q", trust.Data)
		}
		if err == nil {
			_, err = core.ServiceAccounts("a").Get(ctx, "default", metav1.GetOptions{})
		}
		return err
	}
	proctest.Eventually(t, "the namespace is provided for", provided)
	must(t, core.ConfigMaps("a").Delete(ctx, "kube-root-ca.crt", metav1.DeleteOptions{}))
	must(t, core.ServiceAccounts("a").Delete(ctx, "default", metav1.DeleteOptions{}))
	proctest.Eventually(t, "it is provided for again", provided)

	end() // the next controllers find the objects that these left
	c.define("things")
	c.make("things", "a", "t", nil)
	_, err = core.Pods("a").Create(ctx, pod, metav1.CreateOptions{})
	must(t, err)
	must(t, core.Namespaces().Delete(ctx, "a", metav1.DeleteOptions{}))
	c.control()
	c.gone("the namespace", func() error {
		_, err := core.Namespaces().Get(ctx, "a", metav1.GetOptions{})
		return err
	})
	if left, err := c.custom.Resource(resource("things")).List(ctx, metav1.ListOptions{}); err != nil || len(left.Items) > 0 {
		t.Errorf("custom resources left in a deleted namespace: %v %v", left, err)
	}
	if left, err := core.Pods("a").List(ctx, metav1.ListOptions{}); err != nil || len(left.Items) > 0 {
		t.Errorf("pods left in a deleted namespace: %v %v", left, err)
	}
}

// TestOwnedObjectsGoWithTheirOwner checks that owned objects are deleted with their owner, before it or not at all,
// as the deletion asks. That includes kinds whose CRDs were created while the collector ran.
func TestOwnedObjectsGoWithTheirOwner(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.control()
	ctx := t.Context()
	owners, owned := c.custom.Resource(resource("owners")).Namespace("default"), c.client.CoreV1().ConfigMaps("default")
	for round := range 2 { // the second round creates the removed CRDs again
		c.define("owners")
		for policy, left := range map[metav1.DeletionPropagation]bool{
			metav1.DeletePropagationBackground: false, metav1.DeletePropagationForeground: false, metav1.DeletePropagationOrphan: true,
		} {
			name := fmt.Sprintf("%s-%d", strings.ToLower(string(policy)), round)
			owner := c.make("owners", "default", name, nil)
			reference := []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "owners-kind", Name: name, UID: owner.GetUID(), BlockOwnerDeletion: ptr.To(true)}}
			_, err := owned.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: reference}}, metav1.CreateOptions{})
			must(t, err)
			child := c.make("owners", "default", name+"-child", reference)
			c.seen("default", name+"-seen")
			must(t, owners.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &policy}))
			c.gone(name, func() error { _, err := owners.Get(ctx, name, metav1.GetOptions{}); return err })
			getOwned := func() error { _, err := owned.Get(ctx, name, metav1.GetOptions{}); return err }
			getChild := func() error { _, err := owners.Get(ctx, child.GetName(), metav1.GetOptions{}); return err }
			if !left {
				c.gone("what "+name+" owned", getOwned)
				c.gone("its child", getChild)
				continue
			}
			proctest.Eventually(t, "what was orphaned has no owner", func() error {
				orphan, err := owned.Get(ctx, name, metav1.GetOptions{})
				if err == nil && len(orphan.OwnerReferences) > 0 {
					err = fmt.Errorf("the orphan has the owners %v", orphan.OwnerReferences)
				}
				return err
			})
			must(t, getChild())
		}
		crds := c.definitions.ApiextensionsV1().CustomResourceDefinitions()
		must(t, crds.Delete(ctx, "owners.example.com", metav1.DeleteOptions{}))
		c.gone("the definition", func() error {
			_, err := crds.Get(ctx, "owners.example.com", metav1.GetOptions{})
			return err
		})
	}
}

// seen waits until the collector has seen all ConfigMaps created before the call. It relies on the order of events:
// the collector deletes the ConfigMap name, whose owner does not exist. As in Kubernetes, the collector does not orphan
// objects that it has not seen.
func (c *cluster) seen(namespace, name string) {
	c.t.Helper()
	configMaps := c.client.CoreV1().ConfigMaps(namespace)
	nobody := []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "nobody", UID: "nobody"}}
	_, err := configMaps.Create(c.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: nobody}}, metav1.CreateOptions{})
	must(c.t, err)
	c.gone(name, func() error {
		_, err := configMaps.Get(c.t.Context(), name, metav1.GetOptions{})
		return err
	})
}

// TestLeaseHoldersAreReported checks that the holder of kube-controller-manager's lease is reported while the lease
// lasts.
func TestLeaseHoldersAreReported(t *testing.T) {
	c := newCluster(t)
	c.control()
	leases, ctx := c.client.CoordinationV1().Leases("kube-system"), t.Context()
	rival := func(want string) {
		t.Helper()
		if got, err := testcontrollers.ControllerManagerHolder(ctx, c.client); err != nil || got != want {
			t.Errorf("rival %q %v, want %q", got, err, want)
		}
	}
	rival("")
	now := metav1.NowMicro()
	lease, err := leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "kube-controller-manager"}, Spec: coordinationv1.LeaseSpec{
		HolderIdentity: ptr.To("host_1"), LeaseDurationSeconds: ptr.To[int32](3600), RenewTime: &now,
	}}, metav1.CreateOptions{})
	must(t, err)
	rival("host_1")
	past := metav1.NewMicroTime(now.Add(-2 * time.Hour))
	lease.Spec.RenewTime = &past
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	must(t, err)
	rival("")
}

func resource(plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: plural}
}

// define defines a kind and waits until it is served.
func (c *cluster) define(plural string) {
	c.t.Helper()
	_, err := c.definitions.ApiextensionsV1().CustomResourceDefinitions().Create(c.t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + ".example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: plural + "-kind"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}, metav1.CreateOptions{})
	must(c.t, err)
	proctest.Eventually(c.t, plural+" are served", func() error {
		_, err := c.custom.Resource(resource(plural)).List(c.t.Context(), metav1.ListOptions{})
		return err
	})
}

// make makes a custom resource.
func (c *cluster) make(plural, namespace, name string, owners []metav1.OwnerReference) *unstructured.Unstructured {
	c.t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": plural + "-kind"}}
	object.SetName(name)
	object.SetOwnerReferences(owners)
	var made *unstructured.Unstructured
	proctest.Eventually(c.t, name+" is made", func() (err error) {
		made, err = c.custom.Resource(resource(plural)).Namespace(namespace).Create(c.t.Context(), object, metav1.CreateOptions{})
		return err
	})
	return made
}
