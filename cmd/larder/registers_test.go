package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/larder-io/larder/cmd/larder/internal/server/storestats"
	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/internal/registry/storage"
)

// TestMain makes this binary a server if a test of internal/e2e has started it as kube-apiserver.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "kube-apiserver" {
		os.Exit(runRegistering())
	}
	os.Exit(m.Run())
}

// runRegistering is the program. At its end it writes the names of all metrics. These are the metrics in upstream's
// registry, as bench/buildapiserver/registered writes them, and those of Larder's collectors, which replace upstream's
// code.
func runRegistering() int {
	code := run(os.Args, os.Stdout, os.Stderr)
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		own := append(storage.NewReadMetrics().Collectors(), apimetrics.NewCacheCollector(nil, true), storestats.NewMetrics(0))
		for _, c := range append(own, legacyregistry.Registerer().(prometheus.Collector)) {
			c.Describe(descs)
		}
	}()
	var names []string
	for d := range descs {
		names = append(names, regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1])
	}
	slices.Sort(names)
	if err := os.WriteFile(os.Getenv("METRICS_FILE"), []byte(strings.Join(slices.Compact(names), "\n")+"\n"), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
