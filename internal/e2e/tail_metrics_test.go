package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
)

// TestMetricsOfTheTail checks the metrics of the progress of the etcd watch, in etcd's revisions.
func TestMetricsOfTheTail(t *testing.T) {
	m := newPlane(t).member(false, "", proctest.Port(t)).start()
	value := func(name string) float64 {
		t.Helper()
		family := m.scrape(t)[name]
		if len(family.GetMetric()) != 1 {
			t.Fatalf("%s has %d samples", name, len(family.GetMetric()))
		}
		sample := family.GetMetric()[0]
		return sample.GetGauge().GetValue() + sample.GetCounter().GetValue()
	}
	write := func(name string) (revision float64) {
		t.Helper()
		code, body := m.ask(http.MethodPost, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"`+name+`"}}`, nil)
		var made struct {
			Metadata struct {
				ResourceVersion json.Number
			}
		}
		if err := json.Unmarshal([]byte(body), &made); err != nil || code != http.StatusCreated {
			t.Fatal(code, body, err)
		}
		revision, err := made.Metadata.ResourceVersion.Float64()
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	for i := range 3 {
		before := value("larder_store_revision")
		began := time.Now()
		written := write(fmt.Sprint("c", i))
		if before >= written {
			t.Errorf("larder_store_revision was %v before the write at %v", before, written)
		}
		if known := value("larder_store_revision"); known < written {
			t.Errorf("larder_store_revision is %v after the write at %v", known, written)
		}
		m.Eventually(t, "has the write's revision", func() error {
			if seen := value("larder_tail_revision"); seen < written {
				return fmt.Errorf("seen %v, written %v", seen, written)
			}
			return nil
		})
		if silence := value("larder_tail_silence_seconds"); silence <= 0 || silence > time.Since(began).Seconds() {
			t.Errorf("larder_tail_silence_seconds is %v, but the write was %v ago", silence, time.Since(began))
		}
	}
	reads := value("larder_revision_reads_total")
	if code, body := m.ask(http.MethodGet, "/api/v1/namespaces/default/configmaps", "", nil); code != http.StatusOK {
		t.Fatal(code, body)
	}
	if more := value("larder_revision_reads_total"); more <= reads {
		t.Errorf("larder_revision_reads_total is %v after a consistent list, %v before", more, reads)
	}
	if losses := value("larder_tail_losses_total"); losses != 0 {
		t.Errorf("larder_tail_losses_total is %v, want 0", losses)
	}
}
