package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestClusterStopsAndRestarts checks that Ctrl-C ends all programs, and that the end of one program ends all. The next
// start continues with the stored objects and the requested number of nodes. A killed cluster leaves no process
// running.
func TestClusterStopsAndRestarts(t *testing.T) {
	r := start(t, 3)
	pids := r.children()
	for _, file := range []string{"kube-controller-manager.kubeconfig", "kube-scheduler.kubeconfig", "kwok.kubeconfig", "kwok.yaml", "logs/kwok.log"} {
		info, err := os.Stat(filepath.Join(r.dir, filepath.FromSlash(file)))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", file, info, err)
		}
	}
	must(t, r.Signal(syscall.SIGINT))
	if err := r.Wait(t); err != nil || !strings.HasSuffix(r.Output(), "stopped\n") {
		t.Errorf("after an interrupt: %v\n%s", err, r.Output())
	}
	ended(t, pids)
	if complaints := r.complaints(); len(complaints) > 0 {
		t.Errorf("logged:\n%s", strings.Join(complaints, "\n"))
	}

	must(t, r.Start())
	r.Await(t, "cluster: 3 nodes, ready after")
	pids = r.children()
	must(t, syscall.Kill(pids[0], syscall.SIGKILL))
	if err := r.Wait(t); err == nil || !strings.Contains(r.Output(), "ended unexpectedly: signal: killed") {
		t.Errorf("after a program's end: %v\n%s", err, r.Output())
	}
	ended(t, pids)

	must(t, r.Start())
	r.Await(t, "cluster: 3 nodes, ready after")
	pids = r.children()
	r.Kill()
	ended(t, pids)
}

// TestProgramsLogNoUnusualErrors checks that logged failures of lists and watches count as complaints.
func TestProgramsLogNoUnusualErrors(t *testing.T) {
	for line, complaint := range map[string]bool{
		`E1122 11:27:10.000001    4571 reflector.go:200] "Failed to watch" err="failed to list *v1.Pod: the server could not find the requested resource" type="*v1.Pod"`:               true,
		`W1122 11:27:10.000001    4571 reflector.go:561] watch of *v1.Pod ended with: very short watch: Unexpected watch close - watch lasted less than a second and no items received`: true,
		`E1122 11:27:10.000001    4571 leaderelection.go:1] "Unhandled Error" err="Internal error occurred: x"`:                                                                         true,
		`{"time":"2026-11-22T11:44:57Z","level":"ERROR","msg":"failed to apply stage","err":"failed to patch pod p: Internal error occurred: x"}`:                                       true,
		`{"time":"2026-11-22T11:44:57Z","level":"ERROR","msg":"failed to apply stage","err":"failed to delete resource for step 0: failed to delete pod p: pods \"p\" not found"}`:      false,
		`E1122 11:27:10.000001    4571 replica_set.go:640] "Unhandled Error" err="sync \"a/b\" failed with replicasets.apps \"b\" not found" logger="UnhandledError"`:                   false,
		`I1122 11:27:10.000001    4571 reflector.go:436] "Caches populated" type="*v1.Pod"`:                                                                                             false,
	} {
		if got := problem.MatchString(line) && !matches(usual, line); got != complaint {
			t.Errorf("a complaint: %v, want %v: %s", got, complaint, line)
		}
	}
}

// TestFewerNodesRemoveTheRest checks that a start with fewer nodes removes exactly the surplus nodes.
func TestFewerNodesRemoveTheRest(t *testing.T) {
	many, few := start(t, 5), 0
	nodes, err := many.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	ranges := make(map[string]bool)
	for _, n := range nodes.Items {
		ranges[n.Spec.PodCIDR] = true
	}
	if len(nodes.Items) != 5 || len(ranges) != 5 {
		t.Errorf("%d nodes with ranges %v", len(nodes.Items), ranges)
	}
	own := node(7)
	own.Name, own.Labels = "own", nil
	_, err = many.client.CoreV1().Nodes().Create(t.Context(), own, metav1.CreateOptions{})
	must(t, err)
	c := &Cluster{Nodes: 2}
	must(t, c.makeNodes(t.Context(), many.client))
	nodes, err = many.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, n := range nodes.Items {
		few++
		if n.Name != "own" && n.Name != "node-0" && n.Name != "node-1" {
			t.Errorf("%s is left", n.Name)
		}
	}
	if few != 3 {
		t.Errorf("%d nodes are left", few)
	}
}
