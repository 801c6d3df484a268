package storage

import (
	"context"
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	etcd3testing "k8s.io/apiserver/pkg/storage/etcd3/testing"
	"k8s.io/utils/clock"

	"github.com/larder-io/larder/kv"
)

// TestWritesBesideUpstreamsStore writes the same objects through Larder and through upstream's own store. No
// write may be lost, and both must read the same afterwards.
func TestWritesBesideUpstreamsStore(t *testing.T) {
	const writers, rounds = 4, 25
	server, _ := etcd3testing.NewUnsecuredEtcd3TestClientServer(t)
	defer server.V3Client.Client.Close()
	store, err := kv.NewExternal(kv.ExternalConfig{StoreConfig: kv.StoreConfig{Prefix: "/"}, Endpoints: server.V3Client.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/"})
	f := newFixture(t, runtime.ContentTypeProtobuf, func(c *fixtureConfig) {
		c.Store, c.Tail = store, tail
	})
	run(t, store.Run, tail.Run)
	if err := f.resource.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	compactor := etcd3.NewCompactor(server.V3Client.Client, 0, clock.RealClock{}, nil)
	defer compactor.Stop()
	versioner := storage.APIObjectVersioner{}
	sibling, err := etcd3.New(server.V3Client, compactor, f.codec, f.config.codec.New, f.config.codec.NewList, "", "/pods/",
		schema.GroupResource{Resource: "pods"}, f.transformer, etcd3.NewDefaultLeaseManagerConfig(),
		etcd3.NewDefaultDecoder(f.codec, versioner), versioner)
	if err != nil {
		t.Fatal(err)
	}
	defer sibling.Close()
	f.create(examplePod("a", "shared"))
	group, ctx := errgroup.WithContext(t.Context())
	for i := range writers {
		side := []storage.Interface{f, sibling}[i%2]
		group.Go(func() error {
			for range rounds {
				if err := countUp(ctx, side); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	ours, theirs := &example.PodList{}, &example.PodList{}
	for side, list := range map[storage.Interface]*example.PodList{f: ours, sibling: theirs} {
		if err := side.GetList(t.Context(), "/pods/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, list); err != nil || len(list.Items) != 1 {
			t.Fatalf("got %d items and error %v, want 1", len(list.Items), err)
		}
	}
	if got := ours.Items[0]; got.Generation != writers*rounds || got.ResourceVersion != theirs.Items[0].ResourceVersion {
		t.Errorf("got generation %d at %s, want %d at the sibling's %s", got.Generation, got.ResourceVersion, writers*rounds, theirs.Items[0].ResourceVersion)
	}
	var deleted example.Pod
	if err := sibling.Delete(t.Context(), "/pods/a/shared", &deleted, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.Get(t.Context(), "/pods/a/shared", storage.GetOptions{}, &example.Pod{}); !storage.IsNotFound(err) {
		t.Errorf("read of the object that the sibling deleted: got error %v, want not found", err)
	}
}

// countUp adds one to the generation of the shared pod.
func countUp(ctx context.Context, side storage.Interface) error {
	err := side.GuaranteedUpdate(ctx, "/pods/a/shared", &example.Pod{}, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
		obj.(*example.Pod).Generation++
		return obj, nil
	}), nil)
	if err != nil {
		return fmt.Errorf("count up: %w", err)
	}
	return nil
}
