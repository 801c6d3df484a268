package e2e_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/larder-io/larder/internal/proctest"
)

// TestMetricsDocumentIsComplete checks that docs/monitoring/metrics.md has each of Larder's own metrics, with its
// labels.
func TestMetricsDocumentIsComplete(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "monitoring", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[string]string)
	for _, row := range regexp.MustCompile("(?m)^\\| (`larder_.*?) \\| (.*?) ?\\|").FindAllStringSubmatch(string(text), -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			labels := strings.Split(row[2], ", ")
			slices.Sort(labels)
			documented[strings.Trim(name, "`")] = strings.Join(labels, ", ")
		}
	}
	p := newPlane(t)
	exposed := make(map[string]string)
	for name, f := range p.member(false, "", proctest.Port(t)).start().scrape(t) {
		if strings.HasPrefix(name, "larder_") {
			var labels []string
			for _, l := range f.GetMetric()[0].GetLabel() {
				labels = append(labels, l.GetName())
			}
			slices.Sort(labels)
			exposed[name] = strings.Join(labels, ", ")
		}
	}
	if diff := cmp.Diff(exposed, documented); diff != "" {
		t.Errorf("- /metrics, + docs/monitoring/metrics.md:\n%s", diff)
	}
}
