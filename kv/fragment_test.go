package kv_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestLargeReplaysAreSplitBetweenRevisions checks that past events larger than etcd's limit for a response arrive in
// several responses, and that no revision is split between two.
func TestLargeReplaysAreSplitBetweenRevisions(t *testing.T) {
	const revisions, keys, size = 6, 4, 300 << 10 // four values are nearly as large as etcd's limit for a transaction
	store := openExternal(t, kv.ExternalConfig{Endpoints: kvtest.URLs(startCluster(t, 1, kvtest.LengthenElectionTimeout))})
	before, err := store.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range revisions {
		values := make(map[string][]byte)
		for k := range keys {
			values[fmt.Sprintf("/registry/things/%d", k)] = bytes.Repeat([]byte{byte('a' + i)}, size)
		}
		if _, err := store.PutAll(t.Context(), values); err != nil {
			t.Fatal(err)
		}
	}
	watch := store.Watch(t.Context(), "/registry/", before)
	responses, seen := 0, 0
	timeout := time.After(proctest.Patience)
	for last := int64(0); seen < revisions; {
		select {
		case response, ok := <-watch:
			if !ok || response.Err != nil {
				t.Fatalf("after %d revisions: %v", seen, response.Err)
			}
			if len(response.Batches) > 0 {
				responses++
			}
			for _, batch := range response.Batches {
				if len(batch.Events) != keys || batch.Revision <= last {
					t.Errorf("%d events of revision %d after %d, want %d of a later revision", len(batch.Events), batch.Revision, last, keys)
				}
				for _, e := range batch.Events {
					if len(e.Value) != size || e.Value[0] != byte('a'+seen) {
						t.Errorf("revision %d: %s has %d bytes of %q", batch.Revision, e.Key, len(e.Value), e.Value[0])
					}
				}
				seen, last = seen+1, batch.Revision
			}
			if n := len(response.Batches); n > 0 && response.Progress != response.Batches[n-1].Revision {
				t.Errorf("progress %d with revisions up to %d", response.Progress, response.Batches[n-1].Revision)
			}
		case <-timeout:
			t.Fatalf("%d of %d revisions were delivered", seen, revisions)
		}
	}
	if responses < 2 {
		t.Errorf("%d MB were delivered in %d responses, want at least 2", revisions*keys*size>>20, responses)
	}
}
