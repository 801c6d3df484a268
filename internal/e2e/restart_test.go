package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	typedextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/larder-io/larder/internal/proctest"
)

// TestWatchResumesAfterRestart kills the server and resumes a watch at its successor from where a client was: each
// event must arrive once, in order. Lists at revisions of that time must also be served. This applies to writes of the
// last 80 seconds, however many revisions they have. Without a replay, the client must list again.
func TestWatchResumesAfterRestart(t *testing.T) {
	p := serve(t, "--index-labels", "configmaps=app", "--replay-revisions=1")
	var changes []string
	var from string
	number := 0
	write := func(client kubernetes.Interface) (version string) {
		version = writeNumber(t, client, number)
		changes = append(changes, fmt.Sprintf("%d@%s", number, version))
		number++
		return version
	}
	// If the machine took longer than a minute, the test tries again.
	for began := time.Now(); from == "" || time.Since(began) > time.Minute; {
		client := p.client()
		for range 10 {
			from = write(client)
		}
		began, changes = time.Now(), nil
		for range 20 {
			write(client)
		}
		p.Kill()
		p.start()
		p.awaitReady()
	}
	client, last := p.client(), strconv.Itoa(number-21)
	write(client)
	if got, err := numbers(t, client, from, len(changes)); err != nil || !slices.Equal(got, changes) {
		t.Errorf("watch after %s: %q, error %v; want %q", from, got, err, changes)
	}
	list, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{
		LabelSelector: "app=number", ResourceVersion: from, ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	})
	if err != nil || len(list.Items) != 1 || list.Items[0].Data["n"] != last {
		t.Errorf("list at %s: %+v, error %v", from, list, err)
	}

	p.args = append(p.args, "--replay-revisions=0")
	p.Kill()
	p.start()
	p.awaitReady()
	if got, err := numbers(t, p.client(), from, 1); !apierrors.IsResourceExpired(err) {
		t.Errorf("watch after %s, without a replay: %q, error %v", from, got, err)
	}
}

// writeNumber writes n into a ConfigMap and returns the new resourceVersion.
func writeNumber(t *testing.T, client kubernetes.Interface, n int) string {
	t.Helper()
	maps := client.CoreV1().ConfigMaps("default")
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "number", Labels: map[string]string{"app": "number"}},
		Data:       map[string]string{"n": strconv.Itoa(n)},
	}
	var err error
	if n == 0 {
		object, err = maps.Create(t.Context(), object, metav1.CreateOptions{})
	} else {
		object, err = maps.Update(t.Context(), object, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return object.ResourceVersion
}

// numbers watches the ConfigMap after a version until it has received count changes.
func numbers(t *testing.T, client kubernetes.Interface, after string, count int) (got []string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	w, err := client.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{LabelSelector: "app=number", ResourceVersion: after})
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return got, apierrors.FromObject(event.Object)
		}
		object := event.Object.(*corev1.ConfigMap)
		if got = append(got, object.Data["n"]+"@"+object.ResourceVersion); len(got) == count {
			break
		}
	}
	// No event arrives twice, and none follows the last: the next event is of the next write.
	barrier := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "barrier", Labels: map[string]string{"app": "number"}}}
	if barrier, err = client.CoreV1().ConfigMaps("default").Create(ctx, barrier, metav1.CreateOptions{}); err != nil {
		return got, err
	}
	event, ok := <-w.ResultChan()
	if object, is := event.Object.(*corev1.ConfigMap); !ok || !is || event.Type != watch.Added || object.ResourceVersion != barrier.ResourceVersion {
		return got, fmt.Errorf("%v after the last change, want the next write's event", event)
	}
	return got, nil
}

// TestCustomWatchResumesAfterRestart is TestWatchResumesAfterRestart for a custom resource, whose cache is loaded by
// the first request. A watch cannot resume before a change of its CRD, because objects may differ since then.
func TestCustomWatchResumesAfterRestart(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync")
	definition := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "numbers.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "numbers", Kind: "Number"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"n": {Type: "integer"}},
				}}}},
		},
	}
	definitions := func() typedextensions.CustomResourceDefinitionInterface {
		client, err := extensionsclient.NewForConfig(p.config())
		if err != nil {
			t.Fatal(err)
		}
		return client.ApiextensionsV1().CustomResourceDefinitions()
	}
	numbers := func() dynamic.ResourceInterface {
		client, err := dynamic.NewForConfig(p.config())
		if err != nil {
			t.Fatal(err)
		}
		return client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "numbers"}).Namespace("default")
	}
	if _, err := definitions().Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	number := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Number", "metadata": map[string]any{"name": "a"}, "n": int64(0)}}
	var from string
	proctest.Eventually(t, "the resource is served", func() error {
		created, err := numbers().Create(t.Context(), number, metav1.CreateOptions{})
		if err == nil {
			number = created
		}
		return err
	})
	var want []string
	for i := range 20 {
		var err error
		number.Object["n"] = int64(i + 1)
		if number, err = numbers().Update(t.Context(), number, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if i == 4 {
			from = number.GetResourceVersion()
		} else if i > 4 {
			want = append(want, number.GetResourceVersion())
		}
	}
	p.Kill()
	p.start()
	p.awaitReady()
	w, err := numbers().Watch(t.Context(), metav1.ListOptions{ResourceVersion: from})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for i, version := range want {
		event := <-w.ResultChan()
		if got, ok := event.Object.(*unstructured.Unstructured); event.Type != watch.Modified || !ok || got.GetResourceVersion() != version {
			t.Fatalf("event %d after %s: %v, want that of version %s", i, from, event, version)
		}
	}

	if definition, err = definitions().Get(t.Context(), definition.Name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["n"] = apiextensionsv1.JSONSchemaProps{Type: "integer", Minimum: ptr.To(0.0)}
	if _, err := definitions().Update(t.Context(), definition, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range w.ResultChan() { // the watch ends when the CRD has changed
	}
	proctest.Eventually(t, "revisions before the change are expired", func() error {
		w, err := numbers().Watch(t.Context(), metav1.ListOptions{ResourceVersion: from})
		if err != nil {
			return err
		}
		defer w.Stop()
		if event := <-w.ResultChan(); event.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
			return fmt.Errorf("got event %v", event)
		}
		return nil
	})
}
