package e2e_test

import (
	"testing"

	"github.com/larder-io/larder/bench"
)

// TestWritesOfComponentsAreAccepted checks that the server accepts each write in the load of a cluster's components.
func TestWritesOfComponentsAreAccepted(t *testing.T) {
	t.Parallel()
	p := serve(t, "--unsafe-no-fsync")
	target, err := bench.NewTarget(p.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	results, err := bench.Components(t.Context(), target, bench.ComponentsConfig{Namespace: "load", Nodes: 3, Load: bench.Load{Operations: 12, Clients: 4}})
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range bench.ComponentWrites() {
		if r := results[i]; r.Name != name || r.Ops != 12 || r.Failures() > 0 {
			t.Errorf("%s: %d requests, %d errors (%s); want 12 of %s", r.Name, r.Ops, r.Errors, r.FirstError, name)
		}
	}
}
