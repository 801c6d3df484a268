package builtin

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestLeases checks that the lease of a server is listed as long as it is refreshed, under the key that kube-apiserver
// uses, and whether another server has refreshed it.
func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		go func() { _ = store.Run(t.Context()) }()
		l, err := newBuiltin(t, store).Leases(15 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		want := func(ips ...string) {
			t.Helper()
			synctest.Wait()
			got, err := l.ListLeases()
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, ips) {
				t.Errorf("ListLeases: got %v, want %v", got, ips)
			}
		}
		update := func(ip string) {
			t.Helper()
			if err := l.UpdateLease(ip); err != nil {
				t.Fatal(err)
			}
		}
		want()
		update("192.0.2.1")
		update("2001:db8::1")
		want("192.0.2.1", "2001:db8::1")
		if _, found, _, err := store.Get(t.Context(), "/registry/masterleases/192.0.2.1"); !found || err != nil {
			t.Errorf("record: got found %v and error %v", found, err)
		}
		time.Sleep(10 * time.Second)
		update("192.0.2.1")
		time.Sleep(10 * time.Second)
		want("192.0.2.1")
		foreign := func(ip string, want bool) {
			t.Helper()
			if got, err := l.RefreshedByOther(ip); got != want || err != nil {
				t.Errorf("RefreshedByOther(%s): got %v and error %v, want %v", ip, got, err, want)
			}
		}
		foreign("192.0.2.1", false)
		other, err := newBuiltin(t, store).Leases(15 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := other.UpdateLease("192.0.2.1"); err != nil {
			t.Fatal(err)
		}
		foreign("192.0.2.1", true)
		update("192.0.2.1")
		foreign("192.0.2.1", false)
		if err := l.RemoveLease("192.0.2.1"); err != nil {
			t.Fatal(err)
		}
		foreign("192.0.2.1", false)
		want()
		if err := l.RemoveLease("192.0.2.1"); !storage.IsNotFound(err) {
			t.Errorf("RemoveLease again: got error %v, want not found", err)
		}
	})
}

// silent is a store that does not respond to deletions.
type silent struct{ *kvtest.Memory }

func (silent) Delete(ctx context.Context, _ string, _ int64) (kv.WriteResult, error) {
	<-ctx.Done()
	return kv.WriteResult{}, ctx.Err()
}

// TestRemoveLeaseEnds checks that RemoveLease returns although the store does not respond.
func TestRemoveLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := newBuiltin(t, silent{kvtest.NewMemory()}).Leases(15 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.UpdateLease("192.0.2.1"); err != nil {
			t.Fatal(err)
		}
		if err := l.RemoveLease("192.0.2.1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("RemoveLease: got error %v, want DeadlineExceeded", err)
		}
	})
}
