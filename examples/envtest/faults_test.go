package boxes_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/httpapi/faults"
)

// managerAgent is the user agent of the manager's clients.
const managerAgent = "boxes-manager"

// inject sets a rule for requests of the manager, and clears it before the server is reset.
func inject(t *testing.T, r faults.Rule) faults.Client {
	t.Helper()
	httpClient, err := rest.HTTPClientFor(suite.env.Config)
	if err != nil {
		t.Fatal(err)
	}
	server := faults.Client{HTTP: httpClient, URL: suite.env.Config.Host}
	r.Match.UserAgent = managerAgent
	if err := server.Set(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Clear(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return server
}

// TestLostResponse checks that the controller does its work although the response to its first write of a ConfigMap is
// lost.
func TestLostResponse(t *testing.T) {
	clean(t)
	server := inject(t, faults.Rule{
		Name: "lost", Match: faults.Match{Verbs: []string{"create", "update"}, Resource: "configmaps"}, Lose: faults.LoseCut, Times: 1,
	})
	if err := suite.admin.Create(t.Context(), newBox(7)); err != nil {
		t.Fatal(err)
	}
	if _, content := packed(t); content.Data["size"] != "7" {
		t.Errorf("a box of 7 holds %+v", content.Data)
	}
	if state, err := server.State(t.Context()); err != nil || len(state.Injected) != 1 {
		t.Errorf("injected: %v %v", state, err)
	}
}

// TestStaleCache changes a Box while the manager's cache has an old state of its ConfigMap. The controller gets
// conflicts until the cache is up to date.
func TestStaleCache(t *testing.T) {
	clean(t)
	if err := suite.admin.Create(t.Context(), newBox(7)); err != nil {
		t.Fatal(err)
	}
	box, content := packed(t)
	server := inject(t, faults.Rule{Name: "late", Match: faults.Match{Verbs: []string{"watch"}, Resource: "configmaps"}, Hold: faults.HoldChanges})
	content.Data["size"] = "8"
	box.Size = 9
	if err := errors.Join(suite.admin.Update(t.Context(), &content), suite.admin.Update(t.Context(), &box)); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		state, err := server.State(t.Context())
		if err != nil || len(state.Watches) == 0 || state.Watches[0].Held == 0 {
			return fmt.Errorf("no watch is held: %v, error %w", state.Watches, err)
		}
		return nil
	})
	if err := server.Clear(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if err := suite.admin.Get(t.Context(), key, &content); err != nil {
			return err
		}
		if content.Data["size"] != "9" {
			return fmt.Errorf("the ConfigMap has %v", content.Data)
		}
		return nil
	})
}
