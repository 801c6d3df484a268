package cluster

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/larder-io/larder/cmd/larder/internal/cluster/programs"
)

// Cluster runs the other programs of a cluster beside a server.
type Cluster struct {
	// Dir is the server's data directory, which has its CA, the service account key and the
	// administrator's kubeconfig. This package also writes its files there.
	Dir string
	// Programs is the directory of the programs to start; see package programs.
	Programs string
	// Nodes is the number of nodes. Further nodes of earlier runs are removed.
	Nodes int
	// ServiceRanges are the server's service CIDRs.
	ServiceRanges string
	// Progress receives a few lines about the start.
	Progress io.Writer
}

// Validate checks c without running the programs.
func (c *Cluster) Validate() error {
	if c.Nodes < 0 || c.Nodes > maxNodes {
		return fmt.Errorf("cluster: --nodes must be between 0 and %d, not %d", maxNodes, c.Nodes)
	}
	return nil
}

// Run runs the cluster beside a ready server. c must be valid. Run returns nil when ctx ends, and an error when a program
// ends.
func (c *Cluster) Run(ctx context.Context) error {
	begun := time.Now()
	config, err := clientcmd.BuildConfigFromFlags("", c.file("admin.kubeconfig"))
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	if err := c.writeFiles(config.Host, config.CAData); err != nil {
		return err
	}
	if err = c.authorizeKwok(ctx, client); err == nil {
		err = c.makeNodes(ctx, client)
	}
	if ctx.Err() != nil {
		return nil
	} else if err != nil {
		return err
	}
	running, ctx := errgroup.WithContext(ctx)
	for _, p := range c.programs() {
		running.Go(func() error { return p.run(ctx) })
	}
	if c.awaitNodes(ctx, client) == nil {
		fmt.Fprintf(c.Progress, "cluster: %d nodes, ready after %v; logs in %s\n", c.Nodes, time.Since(begun).Round(10*time.Millisecond), c.file("logs"))
	}
	return running.Wait()
}

// file returns the path of a file in the data directory.
func (c *Cluster) file(name string) string { return filepath.Join(c.Dir, name) }

// programs returns the programs to start.
func (c *Cluster) programs() []*program {
	ca := c.file("pki/ca.crt")
	logs := c.file("logs")
	path := func(name string) string { return filepath.Join(c.Programs, name) }
	return []*program{
		{path: path(programs.ControllerManager), logs: logs, args: []string{
			"--kubeconfig=" + c.kubeconfig(programs.ControllerManager),
			"--use-service-account-credentials",
			"--service-account-private-key-file=" + c.file("pki/sa.key"),
			"--root-ca-file=" + ca,
			"--cluster-signing-cert-file=" + ca,
			"--cluster-signing-key-file=" + c.file("pki/ca.key"),
			"--allocate-node-cidrs", "--configure-cloud-routes=false", "--cluster-cidr=" + podRange,
			"--service-cluster-ip-range=" + c.ServiceRanges,
			"--controller-shutdown-timeout=" + (shutdownTimeout / 2).String(),
			// The rate limits of large clusters, so that rollouts are not delayed.
			"--kube-api-qps=200", "--kube-api-burst=400",
			"--leader-elect=false", "--secure-port=0",
		}},
		{path: path(programs.Scheduler), logs: logs, args: []string{
			"--kubeconfig=" + c.kubeconfig(programs.Scheduler), "--leader-elect=false", "--secure-port=0",
		}},
		{path: path(programs.Kwok), logs: logs, args: []string{
			"--kubeconfig=" + c.kubeconfig(programs.Kwok), "--config=" + c.file("kwok.yaml"), "--config=" + path(programs.Stages),
		}},
	}
}

// awaitNodes blocks until all nodes are ready. It returns an error if ctx ends first.
func (c *Cluster) awaitNodes(ctx context.Context, client kubernetes.Interface) error {
	const interval = 100 * time.Millisecond
	return wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		return err == nil && ready(nodes.Items) >= c.Nodes, nil // a stopping server rejects the request
	})
}

// ready counts the nodes that are ready and have no taints.
func ready(nodes []corev1.Node) (n int) {
	for _, node := range nodes {
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue && len(node.Spec.Taints) == 0 {
				n++
			}
		}
	}
	return n
}
