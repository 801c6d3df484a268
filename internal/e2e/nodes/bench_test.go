package nodes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// BenchmarkExec reads 200 MB from a container, as `kubectl exec p -- cat FILE` does, through Larder and, with -stock,
// through kube-apiserver. It reports bytes per second, and the server's CPU time. -larder names a program built without
// checks.
func BenchmarkExec(b *testing.B) {
	const size = 200 << 20
	c := newCluster(b, "--authorization-mode=RBAC", "--advertise-address=192.0.2.1")
	k := newKubelet(b, &c.pki, nil)
	c.node(b, "n", "127.0.0.1", k.port)
	k.run(b, "default/p/c", "cat")
	c.pod(b, "p", "n", nil, "c")
	file := filepath.Join(k.dir, "large")
	if err := os.WriteFile(file, make([]byte, size), 0o600); err != nil {
		b.Fatal(err)
	}
	servers := []*server{c.server}
	if *stockBinary != "" {
		servers = append(servers, c.startStock(b))
	}
	for _, protocol := range []string{"WebSocket", "SPDY"} {
		for _, s := range servers {
			b.Run(protocol+"/"+s.name, func(b *testing.B) {
				b.SetBytes(size)
				before := s.cpu(b)
				for b.Loop() {
					cmd := c.kubectl(b, s, protocols[protocol], "exec", "p", "--", "cat", file)
					var errs strings.Builder
					cmd.Stderr = &errs // the output is discarded
					if err := cmd.Run(); err != nil {
						b.Fatal(err, errs.String())
					}
				}
				b.ReportMetric(float64((s.cpu(b)-before).Milliseconds())/float64(b.N), "server-ms/op")
			})
		}
	}
}

// cpu returns the CPU time of the server.
func (s *server) cpu(t testing.TB) time.Duration {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(raw)[strings.LastIndexByte(string(raw), ')')+1:])
	var user, system int64
	fmt.Sscan(fields[11], &user)
	fmt.Sscan(fields[12], &system)
	const tick = 10 * time.Millisecond // USER_HZ
	return time.Duration(user+system) * tick
}
