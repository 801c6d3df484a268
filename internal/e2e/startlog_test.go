package e2e_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

// TestLogBeginsLikeKubeAPIServers checks that at --v=1 the log begins with the version, all flags and their values, and
// the variables of Go's runtime. The server's own requests must cause no warning.
func TestLogBeginsLikeKubeAPIServers(t *testing.T) {
	t.Parallel()
	m := newPlane(t, "--v=1", "--endpoint-reconciler-type=lease", "--advertise-address=192.0.2.1", "--max-requests-inflight=401").member(*stockBinary != "", "", proctest.Port(t)).start()
	m.Eventually(t, "publishes its endpoints", func() error {
		if code, body := m.ask(http.MethodGet, "/api/v1/namespaces/default/endpoints/kubernetes", "", nil); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	lines := strings.Split(m.Output(), "\n")
	number := func(pattern string) int {
		t.Helper()
		at := regexp.MustCompile(`^I\d{4} [\d:.]+ +\d+ \w+\.go:\d+\] ` + pattern)
		for i, line := range lines {
			if at.MatchString(line) {
				return i
			}
		}
		t.Errorf("no line matches %s", pattern)
		return -1
	}
	last := -1
	for _, pattern := range []string{
		`FLAG: --enable-priority-and-fairness="true"$`, `FLAG: --etcd-servers="\[http://[\d.:]+\]"$`, `FLAG: --max-requests-inflight="401"$`, `FLAG: --v="1"$`,
		`Version: v1\.36\.3$`, `"Golang settings" GOGC="\w*" GOMAXPROCS="\w*" GOTRACEBACK="\w*"$`,
	} {
		if n := number(pattern); n <= last {
			t.Errorf("%s matches line %d, which is not after line %d", pattern, n, last)
		} else {
			last = n
		}
	}
	for _, line := range lines {
		if strings.Contains(line, " warnings.go:") {
			t.Errorf("unexpected warning: %s", line)
		}
	}
	if err := m.Terminate(t); err != nil {
		t.Fatal(err)
	}
}
