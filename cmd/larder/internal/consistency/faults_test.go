package consistency

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-io/larder/cmd/larder/internal/server/servertest"
	"github.com/larder-io/larder/httpapi/faults"
)

// TestHistoryOfInjectedFaults checks that clients of a server that injects faults see only what a real cluster could
// show them.
func TestHistoryOfInjectedFaults(t *testing.T) {
	if *seed == 0 {
		*seed = time.Now().UnixNano()
	}
	t.Logf("seed %d", *seed)
	c := newCluster(t, 1, 0)
	c.addReplica(t, "larder", servertest.Config{Faults: true})
	c.define(t)
	l := &load{cluster: c, truth: follow(t, c.urls), compacted: new(atomic.Int64), injects: true, observed: make(map[version]observation)}
	server := faults.Client{HTTP: c.replicas[0].client, URL: c.replicas[0].url}
	held := faults.Match{Resource: configMaps.group.Resource, Verbs: []string{"watch"}}
	for _, r := range []faults.Rule{
		{Name: "seed", Seed: uint64(*seed), Times: 500},
		{Name: "hold", Match: held, Hold: faults.HoldChanges, Skip: 2, Times: 4},
		{Name: "delay", Match: held, Delay: "20ms", Times: 8},
		{Name: "everything", Hold: faults.HoldEverything, Skip: 20, Times: 4},
	} {
		if err := server.Set(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	roles := []role{{6, (*client).write, 20 * time.Millisecond}, {6, (*client).read, 20 * time.Millisecond}}
	l.run(t, 5*time.Second, roles, func(ctx context.Context, _ *rand.Rand) *nemesis {
		for n := 0; pause(ctx, 20*time.Millisecond); n++ {
			if n%5 == 0 {
				_ = server.Release(t.Context(), "everything")
			}
			err := server.Step(t.Context(), "hold", 1+n%3)
			// Rules are created, changed and deleted while watches are open.
			switch round := n / 5; {
			case err != nil:
			case n%5 == 3:
				err = server.Clear(t.Context(), "changing")
			case n%5 == 0:
				err = server.Set(t.Context(), []faults.Rule{
					{Name: "changing", Delay: "5ms"},
					{Name: "changing", End: faults.EndBookmark, After: round % 3, Times: 2},
					{Name: "changing", Match: held, Hold: faults.HoldChanges, Times: 2},
					{Name: "changing", Stale: 1 + n%9},
				}[round%4])
			}
			if err != nil {
				t.Error(err)
			}
		}
		state, err := server.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := server.Clear(t.Context()); err != nil {
			t.Fatal(err)
		}
		return &nemesis{hits: map[string]int{"injected": len(state.Injected)}}
	})
}
