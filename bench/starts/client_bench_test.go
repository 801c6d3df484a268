package starts

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/benchtest"
	"github.com/larder-io/larder/bench/process"
	"github.com/larder-io/larder/bench/testservers"
)

const (
	// clientRole makes the test binary the client of BenchmarkClientDuringRestart. The variable clientConfig has its
	// kubeconfig.
	clientRole   = "client"
	clientConfig = "BENCH_CLIENT_KUBECONFIG"
	// clientObjects is the number of Services, and also of EndpointSlices.
	clientObjects = 4000
	// newObject is the name of the Service and the EndpointSlice that are created after the restart.
	newObject = "after-the-restart"
)

// BenchmarkClientDuringRestart measures a client with client-go's informers of Services and EndpointSlices while its
// server receives SIGTERM and starts again: the client's memory before, its highest memory until both informers follow
// the new process, and its CPU time. A few other objects change shortly before, as in any cluster.
func BenchmarkClientDuringRestart(b *testing.B) {
	trials := testservers.Trials{Servers: []string{testservers.Stock, testservers.Larder}, Say: func(line string) { b.Log(line) }}
	if err := trials.Build(b.Context(), b.TempDir()); err != nil {
		b.Fatal(err)
	}
	for _, kind := range trials.Servers {
		b.Run(kind, func(b *testing.B) {
			for b.Loop() {
				if err := clientDuringRestart(b, trials.TestServers, kind); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func clientDuringRestart(b *testing.B, programs testservers.Config, kind string) (err error) {
	programs.Dir = b.TempDir()
	f, err := testservers.New(b.Context(), programs, "client")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := fillForClient(b.Context(), f.EtcdURL()); err != nil {
		return err
	}
	server, err := f.Start(b.Context(), kind, testservers.DefaultGuards())
	if err != nil {
		return err
	}
	config, err := f.Kubeconfig(server, "client", "system:masters")
	if err != nil {
		return err
	}
	c, err := startClient(config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	admin, err := server.Target.Client("bench")
	if err == nil {
		err = c.await("synced")
	}
	if err != nil {
		return err
	}
	before, err := c.settled(b.Context())
	if err != nil {
		return err
	}
	for i := range 10 {
		if _, err := admin.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(b.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("before-", i)}}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := server.Stop(); err != nil {
		return err
	}
	if _, err := server.Again(b.Context()); err != nil {
		return err
	}
	if err := createNewObjects(b.Context(), admin); err != nil {
		return err
	}
	if err := c.await("Service", "EndpointSlice"); err != nil {
		return err
	}
	after, err := c.Usage()
	b.ReportMetric(float64(before.RSS)/1e6, "MB-before")
	b.ReportMetric(float64(after.PeakRSS)/1e6, "MB-at-most")
	b.ReportMetric((after.CPU - before.CPU).Seconds(), "CPU-s")
	return err
}

// fillForClient writes Services and EndpointSlices to etcd.
func fillForClient(ctx context.Context, url string) error {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{url}})
	if err != nil {
		return err
	}
	defer etcd.Close()
	const services, slices = "/registry/services/specs/", "/registry/endpointslices/"
	return errors.Join(fill(ctx, etcd, services, clientObjects, func(i int) object {
		s := &corev1.Service{ObjectMeta: metadata(fmt.Sprint("service-", i), i, clientObjects)}
		s.Spec = corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"app": s.Name}}
		s.ManagedFields = []metav1.ManagedFieldsEntry{managed("kubectl", "v1", s.CreationTimestamp, podFields)}
		return s
	}), fill(ctx, etcd, slices, clientObjects, func(i int) object {
		const endpoints = 50
		s := &discoveryv1.EndpointSlice{ObjectMeta: metadata(fmt.Sprintf("service-%d-x7k2p", i), i, clientObjects), AddressType: discoveryv1.AddressTypeIPv4}
		s.Labels = map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("service-", i)}
		ready, port, name := true, int32(8080), "http"
		s.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port}}
		for j := range endpoints {
			node := fmt.Sprint("node-", (i+j)%1000)
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i>>8, i&255, j)}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: s.Namespace, Name: fmt.Sprintf("service-%d-%d", i, j), UID: s.UID},
			})
		}
		return s
	}))
}

func createNewObjects(ctx context.Context, admin kubernetes.Interface) error {
	meta := metav1.ObjectMeta{Name: newObject, Namespace: metav1.NamespaceDefault}
	_, service := admin.CoreV1().Services(meta.Namespace).Create(ctx, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}}, metav1.CreateOptions{})
	_, slice := admin.DiscoveryV1().EndpointSlices(meta.Namespace).Create(ctx, &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4}, metav1.CreateOptions{})
	return errors.Join(service, slice)
}

// client is a process in the role clientRole.
type client struct {
	process.Process
	cmd   *exec.Cmd
	lines *bufio.Scanner
	stdin io.Closer
}

func startClient(kubeconfig string) (*client, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), benchtest.Role+"="+clientRole, clientConfig+"="+kubeconfig)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	return &client{Process: process.Process{Name: clientRole, PID: cmd.Process.Pid}, cmd: cmd, lines: bufio.NewScanner(stdout), stdin: stdin}, nil
}

// stop closes the client's input, at which the client ends, and waits for the end.
func (c *client) stop() error { return errors.Join(c.stdin.Close(), c.cmd.Wait()) }

// await reads the client's output until it has read all lines, in any order.
func (c *client) await(lines ...string) error {
	missing := sets.New(lines...)
	for missing.Len() > 0 && c.lines.Scan() {
		missing.Delete(c.lines.Text())
	}
	if missing.Len() > 0 {
		return fmt.Errorf("the client ended before it printed %v: %w", sets.List(missing), c.lines.Err())
	}
	return nil
}

// settled waits until the garbage of the first list is collected, and resets the highest resident memory.
func (c *client) settled(ctx context.Context) (process.Usage, error) {
	const settling = 3 * time.Minute // Go's runtime collects garbage at least every two minutes
	if err := bench.Sleep(ctx, settling); err != nil {
		return process.Usage{}, err
	}
	if err := os.WriteFile(filepath.Join("/proc", fmt.Sprint(c.PID), "clear_refs"), []byte("5"), 0); err != nil {
		return process.Usage{}, err
	}
	return c.Usage()
}

// runClient follows Services and EndpointSlices until the input ends. It prints one line when both informers have
// synced, and one for each new object.
func runClient() error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv(clientConfig))
	if err != nil {
		return err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(clients, 0)
	for kind, informer := range map[string]cache.SharedIndexInformer{
		"Service": factory.Core().V1().Services().Informer(), "EndpointSlice": factory.Discovery().V1().EndpointSlices().Informer(),
	} {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
			if o.(metav1.Object).GetName() == newObject {
				fmt.Println(kind)
			}
		}}); err != nil {
			return err
		}
	}
	stop := make(chan struct{})
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	fmt.Println("synced")
	_, err = io.Copy(io.Discard, os.Stdin)
	close(stop)
	factory.Shutdown()
	return err
}
