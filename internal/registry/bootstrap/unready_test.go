package bootstrap_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/bootstrap"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestUnreadableServiceCIDRsDelayReadiness checks that hooks that need an unreadable ServiceCIDR wait for it. The server
// may become ready without them, and they finish once the ServiceCIDR can be read.
func TestUnreadableServiceCIDRsDelayReadiness(t *testing.T) {
	store := kvtest.NewMemory()
	const key = "/registry/servicecidrs/kubernetes"
	store.PutAll(map[string][]byte{key: []byte("k8s:enc:kms:v2:gone:x")})
	b, _ := start(t, registrytest.New(t, store), nil)
	waiting := []string{"poststarthook/start-kubernetes-service-cidr-controller", "poststarthook/start-service-ip-repair-controllers", "poststarthook/bootstrap-controller"}
	for _, h := range b.Hooks() {
		if !slices.Contains(waiting, h.Name) {
			awaitHook(t, h)
		}
	}
	soon, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.WaitReady(soon); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), waiting[0]) {
		t.Errorf("WaitReady before AllowUnready: got error %v, want one that names the first hook", err)
	}
	if got := b.AllowUnready(); !slices.Equal(got, waiting) {
		t.Errorf("AllowUnready: got %v, want %v", got, waiting)
	}
	for _, h := range b.Hooks() {
		if err := h.Check(); err != nil {
			t.Errorf("%s: %v", h.Name, err)
		}
	}
	wait(t, b)
	store.PutAll(map[string][]byte{key: nil})
	for _, h := range b.Hooks() {
		awaitHook(t, h)
	}
	if got := b.AllowUnready(); len(got) > 0 {
		t.Errorf("AllowUnready: got %v once all hooks are ready, want none", got)
	}
}

// awaitHook waits until a hook has finished, even if it may be unready.
func awaitHook(t *testing.T, h *bootstrap.Hook) {
	t.Helper()
	select {
	case <-h.Ready():
	case <-time.After(proctest.Patience):
		t.Fatalf("timed out waiting for hook %s", h.Name)
	}
}
