package storage

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestReadsReportThatTheStoreFails checks that reads that need the store's revision return its error when it fails.
func TestReadsReportThatTheStoreFails(t *testing.T) {
	yes, no := true, false
	watched := func(q WatchRequest) func(*fixture, int64) error {
		return func(f *fixture, _ int64) error {
			w, err := f.resource.Watch(t.Context(), q)
			if w != nil {
				w.Close()
			}
			return errorOf(err)
		}
	}
	for name, c := range map[string]struct {
		uncached bool
		read     func(f *fixture, now int64) error
	}{
		"a watch without initial events": {false, watched(WatchRequest{SendInitialEvents: &no})},
		"a watch with initial events":    {false, watched(WatchRequest{SendInitialEvents: &yes, Bookmarks: true})},
		"an uncached list": {true, func(f *fixture, now int64) error {
			_, err := f.list(ListRequest{ResourceVersion: strconv.FormatInt(now+1, 10), Match: metav1.ResourceVersionMatchExact})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, runtime.ContentTypeProtobuf, func(config *fixtureConfig) { config.Linearizable = c.uncached })
				now := revisionOf(t, f.create(examplePod("a", "one")).ResourceVersion)
				f.memory.SetHook(func(op, _ string) error {
					if op == "revision" {
						return errors.New("the store is down")
					}
					return nil
				})
				if err := c.read(f, now); err == nil || !strings.Contains(err.Error(), "the store is down") {
					t.Errorf("%v, want the store's error", err)
				}
			})
		})
	}
}
