package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/larder-io/larder/internal/proctest"
)

// TestSlowReadsLeaveATrace checks that a GET and a LIST that wait for the store longer than half a second are logged
// with the time of each step, and faster ones are not. A watch does not wait beyond its timeout.
func TestSlowReadsLeaveATrace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	policy, audited := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	url, etcd := startEtcd(t, filepath.Join(dir, "data"))
	p := serve(t, "--etcd-servers", url, "-v=2", "--audit-policy-file="+policy, "--audit-log-path="+audited, "--audit-log-mode=blocking")
	const maps = "/api/v1/namespaces/kube-system/configmaps"
	const object = maps + "/kube-apiserver-legacy-service-account-token-tracking"
	proctest.Eventually(t, "an object exists", func() error {
		if resp, _ := p.fetch("GET", object, nil, nil); resp.StatusCode != 200 {
			return errors.New(resp.Status)
		}
		return nil
	})
	if err := etcd.Pause(); err != nil {
		t.Fatal(err)
	}
	var reads sync.WaitGroup
	as := func(agent string) http.Header { return http.Header{"User-Agent": {agent}} }
	for agent, path := range map[string]string{"slow/get": object + "?pretty=0", "slow/list": maps + "?limit=7"} {
		reads.Go(func() {
			if resp, body := p.fetch("GET", path, nil, as(agent)); resp.StatusCode != 200 {
				t.Errorf("%s: %d %s", path, resp.StatusCode, body)
			}
		})
	}
	var quick string // the user agent of a read that does not wait, and completes within half a second
	proctest.Eventually(t, "a read from the cache is quick", func() error {
		start := time.Now()
		quick = fmt.Sprintf("quick/%d", start.UnixNano())
		if resp, body := p.fetch("GET", object+"?resourceVersion=0", nil, as(quick)); resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
		if took := time.Since(start); took >= 500*time.Millisecond {
			return errors.New(took.String())
		}
		return nil
	})
	watched := make(chan struct{}) // closed when the watch has ended, although the store does not respond
	reads.Go(func() {
		defer close(watched)
		resp, body := p.fetch("GET", maps+"?watch=1&timeoutSeconds=1", nil, nil)
		if !strings.HasPrefix(string(body), `{"type":"ERROR",`) || !strings.Contains(string(body), `"message":"context deadline exceeded"`) {
			t.Errorf("the watch: status %d %s", resp.StatusCode, body)
		}
	})
	var began time.Time // the time at which the last of the reads had been received
	proctest.Eventually(t, "the reads wait long enough", func() error {
		if n := len(eventsIn(t, audited, auditv1.StageRequestReceived, "slow/")); n < 2 {
			return fmt.Errorf("%d reads have been received", n)
		}
		if began.IsZero() {
			began = time.Now()
		}
		if waited := time.Since(began); waited < 2*time.Second {
			return errors.New(waited.String())
		}
		select {
		case <-watched:
			return nil
		default:
			return errors.New("the watch has not ended")
		}
	})
	if err := etcd.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	reads.Wait()
	for _, want := range []string{
		`Trace\[(\d+)\]: "Get" accept:[^\n]*audit-id:[0-9a-f-]{36},client:127\.0\.0\.1,api-group:,api-version:v1,name:kube-apiserver-legacy[^\n]*,subresource:,namespace:kube-system,protocol:HTTP/[12]\.[01],resource:configmaps,scope:resource,url:` +
			regexp.QuoteMeta(object) + `,user-agent:slow/get,verb:GET \(\d\d-[A-Z][a-z]{2}-\d{4} [0-9:.]+\) \(total time: \d{3,}ms\):\nTrace\[\d+\]: ---"About to write a response" \d{3,}ms \([0-9:.]+\)\nTrace\[\d+\]: \[[0-9.]+m?s\] \[[0-9.]+m?s\] END`,
		`Trace\[\d+\]: "List" [^\n]*,scope:namespace,url:` + regexp.QuoteMeta(maps) + `,user-agent:slow/list,verb:LIST [^\n]*:\nTrace\[\d+\]: ---"Listing from storage done" \d{3,}ms`,
	} {
		proctest.Eventually(t, "the log has a trace", func() error {
			if !regexp.MustCompile(want).MatchString(p.Output()) {
				return errors.New("no " + want + " in\n" + p.Output())
			}
			return nil
		})
	}
	for agent, want := range map[string]int{"slow/get": 1, "slow/list": 1, quick: 0} {
		if n := len(regexp.MustCompile(`Trace\[\d+\]: "(Get|List)" [^\n]*user-agent:`+agent+`,`).FindAllString(p.Output(), -1)); n != want {
			t.Errorf("%d traces of %s, want %d, in\n%s", n, agent, want, p.Output())
		}
	}
}
