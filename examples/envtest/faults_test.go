package boxes_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
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

// TestLostAnswer: the controller does its work though the answer to its first create is lost.
func TestLostAnswer(t *testing.T) {
	clean(t)
	server := inject(t, faults.Rule{
		Name: "lost", Match: faults.Match{Verbs: []string{"create"}, Resource: "configmaps"}, Lose: faults.LoseCut, Times: 1,
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

// TestStaleCache: a change of the Box that comes while the manager's cache lacks its ConfigMap is made when
// the cache has it.
func TestStaleCache(t *testing.T) {
	clean(t)
	server := inject(t, faults.Rule{Name: "late", Match: faults.Match{Verbs: []string{"watch"}, Resource: "configmaps"}, Hold: faults.HoldChanges})
	if err := suite.admin.Create(t.Context(), newBox(7)); err != nil {
		t.Fatal(err)
	}
	box, _ := packed(t)
	box.Size = 9
	if err := suite.admin.Update(t.Context(), &box); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		state, err := server.State(t.Context())
		if err != nil || len(state.Watches) == 0 || state.Watches[0].Held == 0 {
			return fmt.Errorf("nothing is held: %v %w", state.Watches, err)
		}
		return nil
	})
	if err := server.Clear(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		var content corev1.ConfigMap
		if err := suite.admin.Get(t.Context(), key, &content); err != nil {
			return err
		}
		if content.Data["size"] != "9" {
			return fmt.Errorf("it holds %v", content.Data)
		}
		return nil
	})
}
