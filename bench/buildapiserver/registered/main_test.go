// Package registered has a test binary that is kube-apiserver. When it ends, it writes the names of all registered
// metrics to the file that METRICS_FILE names, including metrics without samples. docs/monitoring/metrics.md has the
// command that builds it. The version that it sets decides which deprecated metrics are hidden.
package registered

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

// TestMain runs kube-apiserver instead of tests.
func TestMain(*testing.M) {
	code := cli.Run(app.NewAPIServerCommand())
	if err := os.WriteFile(os.Getenv("METRICS_FILE"), []byte(strings.Join(registered(), "\n")+"\n"), 0o644); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// registered returns the names of the metrics in upstream's registry.
func registered() []string {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		legacyregistry.Registerer().(prometheus.Collector).Describe(descs)
	}()
	var names []string
	for d := range descs {
		names = append(names, regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1])
	}
	slices.Sort(names)
	return slices.Compact(names)
}
