package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// SeedConfig is the number of pods to create and their distribution. Without nodes the pods are not scheduled.
type SeedConfig struct {
	Pods, Namespaces, Nodes int
	Clients                 int
}

// namespaceFormat makes the names of the namespaces of the pods that Seed creates.
const namespaceFormat = "bench-%d"

// Seed creates namespaces and pods like the components of a cluster: one field manager creates a pod and
// another writes its status. Each pod has two managedFields entries, and about 5 KB in protobuf. Seed does
// not change existing pods. It ends at the first pod that it cannot create, and honors Retry-After of 429 responses.
func Seed(ctx context.Context, t *Target, c SeedConfig) (*Result, error) {
	if c.Pods < 1 || c.Namespaces < 1 || c.Nodes < 0 {
		return nil, fmt.Errorf("bench: --pods and --namespaces must be at least 1 and --nodes at least 0, are %d, %d and %d", c.Pods, c.Namespaces, c.Nodes)
	}
	l := loop{Load: Load{Operations: c.Pods, Clients: c.Clients}, strict: true}
	if err := l.check(); err != nil {
		return nil, err
	}
	if err := t.ensureNamespaces(ctx, c.Namespaces); err != nil {
		return nil, err
	}
	l.through = t.retrying()
	return l.measure(ctx, t, "seed pods", "pod", func(_ context.Context, own *conn, i int, _ time.Time) (outcome, error) {
		return seedPod(own, seededPod(i, c), c.PodPath(i))
	})
}

// retrying returns a Clone with RetryAfter set.
func (t *Target) retrying() *Target {
	other := t.Clone()
	other.RetryAfter = true
	return other
}

// PodPaths returns the paths of the first n pods that Seed creates.
func (c SeedConfig) PodPaths(n int) []string {
	return sequence(n, c.PodPath)
}

// sequence returns the items 0 to n-1.
func sequence[T any](n int, item func(i int) T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = item(i)
	}
	return all
}

// PodPath returns the path of the i-th pod.
func (c SeedConfig) PodPath(i int) string {
	return fmt.Sprintf("/api/v1/namespaces/%s/pods/%s", fmt.Sprintf(namespaceFormat, i%c.Namespaces), podName(i))
}

// NodeSelection returns the path that lists all pods of the i-th node.
func (c SeedConfig) NodeSelection(i int) string {
	return "/api/v1/pods?fieldSelector=spec.nodeName%3D" + c.nodeName(i)
}

func (c SeedConfig) nodeName(i int) string {
	if c.Nodes == 0 {
		return ""
	}
	return fmt.Sprintf("node-%d", i%c.Nodes)
}

// Deliveries returns how many events all watchers receive together. Watcher i selects node i modulo Nodes. The
// changes apply to the first objects in turn.
func (c SeedConfig) Deliveries(watchers, objects, changes int) int {
	n := 0
	for i := range changes {
		node := i % objects % c.Nodes
		n += (watchers - node + c.Nodes - 1) / c.Nodes
	}
	return n
}

// NodeSelections returns the NodeSelection of each of the first n nodes.
func (c SeedConfig) NodeSelections(n int) []string {
	return sequence(n, c.NodeSelection)
}

// Client returns a client-go client for unmeasured requests, whose field manager is manager.
func (t *Target) Client(manager string) (kubernetes.Interface, error) {
	config := rest.CopyConfig(t.config)
	config.UserAgent, config.Timeout, config.ContentType = manager, t.Timeout, runtime.ContentTypeProtobuf
	config.WarningHandler, config.DisableCompression = rest.NoWarnings{}, true
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return client, nil
}

func (t *Target) ensure(ctx context.Context, collection string, object any) error {
	err := t.fetch(ctx, Request{Method: http.MethodPost, Path: collection, Accept: JSON, ContentType: JSON, Body: EncodeJSON(object)})
	if StatusOf(err) == http.StatusConflict {
		return nil
	}
	return err
}

// ensureNamespaces creates the first n of the namespaces of Seed.
func (t *Target) ensureNamespaces(ctx context.Context, n int) error {
	for i := range n {
		if err := t.ensureNamespace(ctx, fmt.Sprintf(namespaceFormat, i)); err != nil {
			return err
		}
	}
	return nil
}

// ensureNamespace creates a namespace and its default service account, which normally a controller creates.
func (t *Target) ensureNamespace(ctx context.Context, name string) error {
	if err := t.ensure(ctx, "/api/v1/namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		return err
	}
	return t.ensure(ctx, "/api/v1/namespaces/"+name+"/serviceaccounts", &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
}

func (t *Target) list(ctx context.Context, path string) (*metav1.PartialObjectMetadataList, error) {
	body, err := t.Capture(ctx, Request{Path: path, Accept: PartialJSON})
	if err != nil {
		return nil, err
	}
	found := &metav1.PartialObjectMetadataList{}
	if err := json.Unmarshal(body, found); err != nil {
		return nil, fmt.Errorf("bench: list of %s: %w", path, err)
	}
	return found, nil
}

func (t *Target) revision(ctx context.Context, path string) (string, error) {
	found, err := t.list(ctx, WithQuery(path, "limit=1"))
	if err != nil {
		return "", err
	}
	if found.ResourceVersion == "" {
		return "", fmt.Errorf("bench: %s has no resourceVersion", path)
	}
	return found.ResourceVersion, nil
}

// revisions returns the resourceVersions of all objects of a collection by name.
func (t *Target) revisions(ctx context.Context, path string) (map[string]string, error) {
	found, err := t.list(ctx, path)
	if err != nil {
		return nil, err
	}
	revisions := make(map[string]string, len(found.Items))
	for i := range found.Items {
		revisions[found.Items[i].Name] = found.Items[i].ResourceVersion
	}
	return revisions, nil
}

func seedPod(own *conn, pod *corev1.Pod, path string) (outcome, error) {
	collection := path[:strings.LastIndexByte(path, '/')]
	o, err := own.do(Post(collection+"?fieldManager=kube-controller-manager", pod))
	if o.status == http.StatusConflict {
		return o, nil
	}
	if err != nil {
		return o, err
	}
	pod.Status = RunningStatus(pod)
	return own.do(Put(path+"/status?fieldManager=kubelet", pod))
}

func appName(i int) string { return fmt.Sprintf("app-%d", i%100) }

func podName(i int) string { return fmt.Sprintf("%s-7d4b9c6f8-%06d", appName(i), i) }
