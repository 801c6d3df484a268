package etcdmain_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv/etcdmain"
)

// asEtcd makes the test binary run as etcd with these arguments, one on each line.
const asEtcd = "LARDER_TEST_ETCD"

func TestMain(m *testing.M) {
	if args := os.Getenv(asEtcd); args != "" {
		os.Args = append([]string{"etcd"}, strings.Split(args, "\n")...)
		etcdmain.Main(os.Args)
		return
	}
	os.Exit(m.Run())
}

func etcd(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asEtcd+"="+strings.Join(args, "\n"))
	return cmd
}

// TestEtcdHasWhatEnvtestNeeds checks a flag in the help, and the health endpoint.
func TestEtcdHasWhatEnvtestNeeds(t *testing.T) {
	help, err := etcd("--help").CombinedOutput()
	if err != nil || !strings.Contains(string(help), "--unsafe-no-fsync") {
		t.Errorf("--help: error %v, want --unsafe-no-fsync in\n%s", err, help)
	}
	if out, err := etcd("--nothing").CombinedOutput(); err == nil {
		t.Errorf("an unknown flag is accepted:\n%s", out)
	}
	ports := proctest.Ports(t, 2)
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	dir := t.TempDir()
	p := proctest.New(t, "etcd", func() *exec.Cmd {
		return etcd("--data-dir="+dir, "--listen-client-urls="+client, "--advertise-client-urls="+client, "--listen-peer-urls="+peer, "--unsafe-no-fsync=true")
	})
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	p.Eventually(t, "etcd is healthy", func() error {
		resp, err := http.Get(client + "/health")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var status struct{ Health string }
		if err := json.NewDecoder(resp.Body).Decode(&status); err != nil || status.Health != "true" {
			return fmt.Errorf("%d %v %v", resp.StatusCode, status, err)
		}
		return nil
	})
	_ = p.Terminate(t) // etcd ends by raising the signal again
}
