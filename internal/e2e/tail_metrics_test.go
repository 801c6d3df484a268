package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
)

// TestMetricsOfTheTail checks that the progress of the watch of etcd is reported in etcd's revisions.
func TestMetricsOfTheTail(t *testing.T) {
	m := newPlane(t).member(false, "", proctest.Port(t)).start()
	tell := func(name string) float64 {
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
		before := tell("larder_store_revision")
		began := time.Now()
		written := write(fmt.Sprint("c", i))
		if before >= written {
			t.Errorf("larder_store_revision was %v before the write of %v", before, written)
		}
		if known := tell("larder_store_revision"); known < written {
			t.Errorf("larder_store_revision is %v after the write of %v", known, written)
		}
		m.Eventually(t, "tells of the write", func() error {
			if seen := tell("larder_tail_revision"); seen < written {
				return fmt.Errorf("seen %v, written %v", seen, written)
			}
			return nil
		})
		if silence := tell("larder_tail_silence_seconds"); silence <= 0 || silence > time.Since(began).Seconds() {
			t.Errorf("nothing was heard for %v s, but of the write %v ago", silence, time.Since(began))
		}
	}
	reads := tell("larder_revision_reads_total")
	if code, body := m.ask(http.MethodGet, "/api/v1/namespaces/default/configmaps", "", nil); code != http.StatusOK {
		t.Fatal(code, body)
	}
	if more := tell("larder_revision_reads_total"); more <= reads {
		t.Errorf("%v reads of the revision after a consistent list, %v before", more, reads)
	}
	if losses := tell("larder_tail_losses_total"); losses != 0 {
		t.Errorf("the place in the history was lost %v times", losses)
	}
}
