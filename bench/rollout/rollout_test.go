package rollout

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/larder-io/larder/bench/testservers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func good() Config {
	return Config{Nodes: 2, Pods: 100, Rest: time.Second, Trials: testservers.Trials{Rounds: 1, Servers: []string{testservers.Stock, testservers.Larder}}}
}

// TestInvalidConfigsAreRejected checks that invalid configurations are rejected before anything is started.
func TestInvalidConfigsAreRejected(t *testing.T) {
	c := good()
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*Config){
		"no nodes":          func(c *Config) { c.Nodes = 0 },
		"half a deployment": func(c *Config) { c.Pods = 150 },
		"no room":           func(c *Config) { c.Pods = 300 },
		"no rest":           func(c *Config) { c.Rest = 0 },
		"no round":          func(c *Config) { c.Rounds = 0 },
		"unknown server":    func(c *Config) { c.Servers = []string{"etcd"} },
	} {
		c := good()
		spoil(&c)
		if _, err := Run(t.Context(), c); err == nil || !strings.HasPrefix(err.Error(), "rollout: ") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestRolledOutDeployments checks that a Deployment counts as rolled out when all its pods are new and available, and it has no
// other pods.
func TestRolledOutDeployments(t *testing.T) {
	whole := appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: each, UpdatedReplicas: each, AvailableReplicas: each}
	for name, c := range map[string]struct {
		change func(*appsv1.DeploymentStatus)
		want   bool
	}{
		"all":                                    {func(*appsv1.DeploymentStatus) {}, true},
		"the controller has not seen the change": {func(s *appsv1.DeploymentStatus) { s.ObservedGeneration = 1 }, false},
		"an old pod is left":                     {func(s *appsv1.DeploymentStatus) { s.Replicas++ }, false},
		"one pod is old":                         {func(s *appsv1.DeploymentStatus) { s.UpdatedReplicas-- }, false},
		"one pod is not available":               {func(s *appsv1.DeploymentStatus) { s.AvailableReplicas-- }, false},
	} {
		d := deployment(0, each)
		d.Generation, d.Status = 2, whole
		c.change(&d.Status)
		if got := rolledOut(d); got != c.want {
			t.Errorf("%s: rolled out is %v", name, got)
		}
	}
}

// TestFindPrograms checks that the newest complete directory is found, and that a directory given by name must be
// complete.
func TestFindPrograms(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", home)
	if dir, err := FindPrograms(""); err == nil || !strings.Contains(err.Error(), "larder cluster") {
		t.Errorf("without a directory: found %q, error %v", dir, err)
	}
	at := time.Now()
	keep := func(name string, files ...string) string {
		dir := filepath.Join(home, "larder", "programs", name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		at = at.Add(time.Minute)
		if err := os.Chtimes(dir, at, at); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	all := []string{controllerManager, scheduler, kwok, stages}
	keep("z", all...)
	newest := keep("m", all...)
	broken := keep("a", all[1:]...)
	if dir, err := FindPrograms(""); dir != newest || err != nil {
		t.Errorf("found %q, error %v, want %q", dir, err, newest)
	}
	if dir, err := FindPrograms(newest); dir != newest || err != nil {
		t.Errorf("given by name: %q, error %v", dir, err)
	}
	if _, err := FindPrograms(broken); err == nil {
		t.Error("a directory without kube-controller-manager was accepted")
	}
}
