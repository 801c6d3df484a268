package rollout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// Phases names the phases at each server, in order.
var Phases = []string{"nodes register", "rollout", "update", "rest", "deletion", "all"}

// Config configures the clusters.
type Config struct {
	testservers.Trials
	Programs string
	// Nodes and Pods are the size of the cluster. Pods is a multiple of a hundred.
	Nodes, Pods int
	Rest        time.Duration
}

// Check returns an error for an invalid configuration.
func (c *Config) Check() error {
	if c.Nodes < 1 || c.Pods < each || c.Pods%each != 0 || c.Rest <= 0 {
		return fmt.Errorf("rollout: --nodes must be at least 1, --pods a multiple of %d and --rest more than 0, are %d, %d and %v", each, c.Nodes, c.Pods, c.Rest)
	}
	const most = 100 // of the 110 pods that fit on a node
	if c.Pods > c.Nodes*most {
		return fmt.Errorf("rollout: --pods=%d do not fit on --nodes=%d: a node holds %d", c.Pods, c.Nodes, most)
	}
	if err := c.Trials.Check(); err != nil {
		return fmt.Errorf("rollout: %w", err)
	}
	return nil
}

// Run runs all clusters, one after the other. With an error it also returns the results so far.
func Run(ctx context.Context, c Config) ([]*bench.Result, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	return c.Each(func(kind string, round int) ([]*bench.Result, error) {
		r := &run{config: &c, kind: kind, dir: filepath.Join(c.TestServers.Dir, fmt.Sprintf("%s-%d", kind, round))}
		err := r.run(ctx)
		return r.results, err
	})
}

type run struct {
	config *Config
	kind   string
	dir    string

	started *testservers.Servers
	server  *testservers.Server
	client  kubernetes.Interface
	beside  []*testservers.Server // etcd and the programs
	results []*bench.Result
}

// run starts a server, its etcd and the programs, runs all phases, and stops everything.
func (r *run) run(ctx context.Context) (err error) {
	r.config.Sayf("%s: starting", r.kind)
	if r.started, err = testservers.New(ctx, r.config.TestServers, filepath.Base(r.dir)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.started.Close()) }()
	if err := r.start(ctx); err != nil {
		return err
	}
	whole, err := r.server.Target.Meter()
	if err != nil {
		return err
	}
	rest := func(ctx context.Context) error { return errors.Join(bench.Sleep(ctx, r.config.Rest), r.alive()) }
	for i, phase := range []func(context.Context) error{r.populate, r.rollOut, r.update, rest, r.remove} {
		part, err := r.server.Target.Meter()
		if err != nil {
			return err
		}
		if err := phase(ctx); err != nil {
			return fmt.Errorf("%s: %w", Phases[i], err)
		}
		r.end(part, Phases[i])
	}
	r.end(whole, Phases[len(Phases)-1])
	return nil
}

// start starts the server and the programs beside it.
func (r *run) start(ctx context.Context) (err error) {
	if r.server, err = r.started.Start(ctx, r.kind, testservers.DefaultGuards()); err != nil {
		return err
	}
	if r.client, err = r.server.Target.Client("larder-bench"); err != nil {
		return err
	}
	if _, err := r.client.RbacV1().ClusterRoleBindings().Create(ctx, clusterAdmin("kwok"), metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := os.WriteFile(r.kwokConfig(), []byte(kwokText), 0o600); err != nil {
		return err
	}
	r.beside = []*testservers.Server{r.started.Etcd()}
	for _, p := range r.programs() {
		kubeconfig, err := r.started.Kubeconfig(r.server, p.user)
		if err != nil {
			return err
		}
		server, err := r.started.StartBeside(p.name, filepath.Join(r.config.Programs, p.name), append(p.args, "--kubeconfig="+kubeconfig))
		if err != nil {
			return err
		}
		r.beside = append(r.beside, server)
	}
	r.server.Target.Beside = nil
	for _, p := range r.beside {
		r.server.Target.Beside = append(r.server.Target.Beside, p.Process)
	}
	return nil
}

// populate creates the nodes and waits until all can run pods.
func (r *run) populate(ctx context.Context) error {
	for i := range r.config.Nodes {
		if _, err := r.client.CoreV1().Nodes().Create(ctx, nodeObject(i), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return r.until(ctx, func(ctx context.Context) (bool, error) {
		nodes, err := r.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return false, err
		}
		ready := func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}
		unready := func(n corev1.Node) bool {
			return len(n.Spec.Taints) > 0 || !slices.ContainsFunc(n.Status.Conditions, ready)
		}
		return len(nodes.Items) == r.config.Nodes && !slices.ContainsFunc(nodes.Items, unready), nil
	})
}

// rollOut creates the Deployments and waits until all pods run.
func (r *run) rollOut(ctx context.Context) error {
	_, err := r.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	for i := range r.config.Pods / each {
		if _, err := r.client.AppsV1().Deployments(namespace).Create(ctx, deployment(i, each), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return r.rolledOut(ctx)
}

// update changes the image of the Deployments and waits until all pods are replaced.
func (r *run) update(ctx context.Context) error {
	patch := fmt.Appendf(nil, `{"spec":{"template":{"spec":{"containers":[{"name":"web","image":%q}]}}}}`, image(2))
	for i := range r.config.Pods / each {
		_, err := r.client.AppsV1().Deployments(namespace).Patch(ctx, deployment(i, each).Name, "application/strategic-merge-patch+json", patch, metav1.PatchOptions{})
		if err != nil {
			return err
		}
	}
	return r.rolledOut(ctx)
}

// rolledOut waits until all wanted pods are available, and no others are left.
func (r *run) rolledOut(ctx context.Context) error {
	return r.until(ctx, func(ctx context.Context) (bool, error) {
		list, err := r.client.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		unfinished := func(d appsv1.Deployment) bool { return !rolledOut(&d) }
		return len(list.Items) == r.config.Pods/each && !slices.ContainsFunc(list.Items, unfinished), nil
	})
}

// remove deletes the namespace and waits until it is gone.
func (r *run) remove(ctx context.Context) error {
	if err := r.client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return r.until(ctx, func(ctx context.Context) (bool, error) {
		_, err := r.client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}

// until waits until done returns true. It fails if a process ends.
func (r *run) until(ctx context.Context, done func(context.Context) (bool, error)) error {
	const (
		interval = 250 * time.Millisecond
		longest  = 10 * time.Minute
	)
	return wait.PollUntilContextTimeout(ctx, interval, longest, true, func(ctx context.Context) (bool, error) {
		if err := r.alive(); err != nil {
			return false, err
		}
		return done(ctx)
	})
}

// alive returns an error that names a process that has ended.
func (r *run) alive() error {
	for _, p := range append(r.beside, r.server) {
		if err := p.CheckAlive(); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) end(m *bench.Meter, phase string) {
	m.End()
	result := &bench.Result{Name: r.kind + ": " + phase, Unit: "pod", Counts: bench.Counts{Ops: r.config.Pods}}
	m.Charge(result)
	r.results = append(r.results, result)
	r.config.Sayf("%s: %.1f s of CPU, in %.1f s", result.Name, result.ServerCPU.Seconds(), result.Wall.Seconds())
}

// namespace holds the Deployments.
const namespace = "rollout"

// each is the number of pods of a Deployment.
const each = 100

func nodeObject(i int) *corev1.Node {
	name := fmt.Sprintf("node-%d", i)
	size := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3),
		}},
		Status: corev1.NodeStatus{Capacity: size, Allocatable: size},
	}
}

// deployment is the i-th Deployment, with the pod template of a typical service.
func deployment(i, pods int) *appsv1.Deployment {
	name, replicas := fmt.Sprintf("web-%d", i), int32(pods)
	labels := map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "shop"}
	request := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": "8080"}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "web", Image: image(1), Resources: corev1.ResourceRequirements{Requests: request, Limits: request},
					Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
					Env:   []corev1.EnvVar{{Name: "LOG_FORMAT", Value: "json"}, {Name: "POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
				}}},
			},
		},
	}
}

func image(version int) string { return fmt.Sprintf("registry.example/shop/web:1.%d", version) }

// rolledOut reports whether all pods of a Deployment are available and have its current template.
func rolledOut(d *appsv1.Deployment) bool {
	s, wanted := d.Status, *d.Spec.Replicas
	return s.ObservedGeneration >= d.Generation && s.Replicas == wanted && s.UpdatedReplicas == wanted && s.AvailableReplicas == wanted
}

// clusterAdmin returns a binding of cluster-admin to a user. kwok's own roles grant it nearly as much.
func clusterAdmin(name string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	}
}

// File names of the programs, and of kwok's configuration.
const (
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
	kwok              = "kwok"
	stages            = "stage-fast.yaml"
)

// FindPrograms returns a directory with kube-controller-manager, kube-scheduler, kwok and kwok's stage-fast.yaml: dir
// or, if dir is "", the newest directory of programs that `larder cluster` has built for this user.
func FindPrograms(dir string) (string, error) {
	if dir != "" {
		return dir, complete(dir)
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("rollout: %w", err)
	}
	kept, err := filepath.Glob(filepath.Join(user, "larder", "programs", "*"))
	if err != nil {
		return "", fmt.Errorf("rollout: %w", err)
	}
	var newest os.FileInfo
	for _, d := range kept {
		if info, err := os.Stat(d); err == nil && complete(d) == nil && (newest == nil || info.ModTime().After(newest.ModTime())) {
			dir, newest = d, info
		}
	}
	if dir == "" {
		return "", errors.New("rollout: kube-controller-manager, kube-scheduler and kwok are not built: run `larder cluster` once, which builds them, or name a directory with --programs")
	}
	return dir, nil
}

func complete(dir string) error {
	for _, name := range []string{controllerManager, scheduler, kwok, stages} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("rollout: %w", err)
		}
	}
	return nil
}

// program is a program beside the server, with its user and arguments.
type program struct {
	name, user string
	args       []string
}

// programs returns the programs in the order of their start. Request limits are higher than the defaults, as in
// clusters with many nodes.
func (r *run) programs() []program {
	fast := []string{"--kube-api-qps=200", "--kube-api-burst=400", "--leader-elect=false", "--secure-port=0"}
	return []program{
		{controllerManager, "system:kube-controller-manager", append([]string{
			"--use-service-account-credentials", "--allocate-node-cidrs=false", "--configure-cloud-routes=false",
			"--service-account-private-key-file=" + r.started.SigningKey(), "--root-ca-file=" + r.started.CAFile(),
		}, fast...)},
		{scheduler, "system:kube-scheduler", fast},
		{kwok, "kwok", []string{"--config=" + r.kwokConfig(), "--config=" + filepath.Join(r.config.Programs, stages)}},
	}
}

func (r *run) kwokConfig() string { return filepath.Join(r.dir, "kwok.yaml") }

// kwokText configures kwok to simulate all nodes.
const kwokText = `apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options:
  manageAllNodes: true
  nodeLeaseDurationSeconds: 40
  nodeLeaseParallelism: 4
  nodePlayStageParallelism: 4
  podPlayStageParallelism: 4
  enablePodsOnNodeSyncStreamWatch: true
`
