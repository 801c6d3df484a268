package e2e_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/internal/proctest"
)

// follower is an informer of the ConfigMaps of one namespace. It checks that no version arrives twice or after a later
// one. While the server is up, this holds for all objects together. Over restarts, it holds for each object alone: an
// informer that lists again gets the missed changes in any order, and unchanged objects again.
type follower struct {
	informer cache.SharedIndexInformer
	restarts bool // the server may restart

	mu      sync.Mutex
	last    map[string]int64 // by name, or for all objects under ""
	seen    map[string]bool  // by name and resource version
	deleted int
	faults  []string
}

// follow starts a follower that requests a media type, and waits until it has the initial state. Errors of the follower
// fail the test.
func follow(t *testing.T, p *process, namespace, mediaType string, restarts bool) *follower {
	t.Helper()
	config := p.config()
	config.ContentType, config.AcceptContentTypes = mediaType, mediaType
	factory := informers.NewSharedInformerFactoryWithOptions(kubernetes.NewForConfigOrDie(config), 0, informers.WithNamespace(namespace))
	f := &follower{
		informer: factory.Core().V1().ConfigMaps().Informer(), restarts: restarts,
		last: make(map[string]int64), seen: make(map[string]bool),
	}
	if _, err := f.informer.AddEventHandler(f.handler()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	factory.Start(ctx.Done())
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
		for _, fault := range f.faults {
			t.Errorf("%s: %s", mediaType, fault)
		}
	})
	proctest.Eventually(t, "the informer syncs", func() error {
		if !f.informer.HasSynced() {
			return fmt.Errorf("it has not synced")
		}
		return nil
	})
	return f
}

func (f *follower) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) { f.note(obj.(*corev1.ConfigMap), !initial) },
		UpdateFunc: func(old, obj any) {
			f.note(obj.(*corev1.ConfigMap), true)
		},
		DeleteFunc: func(obj any) {
			c, ok := obj.(*corev1.ConfigMap)
			if !ok {
				f.fault("the informer missed a deletion and found it by a list: %T", obj)
				return
			}
			f.note(c, true)
			f.mu.Lock()
			defer f.mu.Unlock()
			f.deleted++
		},
	}
}

// note records a notification. Notifications after the initial state are ordered.
func (f *follower) note(c *corev1.ConfigMap, ordered bool) {
	version, err := strconv.ParseInt(c.ResourceVersion, 10, 64)
	if err != nil {
		f.fault("resource version %q", c.ResourceVersion)
	}
	f.mu.Lock()
	f.seen[c.Name+"@"+c.ResourceVersion] = true
	scope := ""
	if f.restarts {
		scope = c.Name
	}
	last := f.last[scope]
	f.last[scope] = max(last, version)
	f.mu.Unlock()
	if ordered && (version < last || version == last && !f.restarts) {
		f.fault("%s at %d follows %d", c.Name, version, last)
	}
}

func (f *follower) fault(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, fmt.Sprintf(format, args...))
}

// await waits until the follower has seen all versions and the number of deletions.
func (f *follower) await(t *testing.T, versions []string, deletions int) {
	t.Helper()
	proctest.Eventually(t, "the informer sees everything", func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, v := range versions {
			if !f.seen[v] {
				return fmt.Errorf("lacks %s, has %d versions, faults %q", v, len(f.seen), f.faults)
			}
		}
		if f.deleted != deletions {
			return fmt.Errorf("%d deletions of %d", f.deleted, deletions)
		}
		return nil
	})
}

// TestInformersFollowBothEncodings checks that informers of both encodings start with a populated namespace and follow
// 1,000 changes of several writers without a gap.
func TestInformersFollowBothEncodings(t *testing.T) {
	const (
		writers   = 5
		rounds    = 50 // of four changes each: create, update, update, delete
		namespace = "default"
	)
	p := serve(t, "--unsafe-no-fsync")
	client := p.client()
	for i := range 20 {
		put(t, client, namespace, fmt.Sprintf("before-%d", i))
	}
	followers := []*follower{
		follow(t, p, namespace, runtime.ContentTypeJSON, false),
		follow(t, p, namespace, runtime.ContentTypeProtobuf, false),
	}
	var (
		mu       sync.Mutex
		versions []string
		group    sync.WaitGroup
	)
	for w := range writers {
		group.Go(func() {
			for i := range rounds {
				made := churn(t, client, namespace, fmt.Sprintf("w%d-%d", w, i))
				mu.Lock()
				versions = append(versions, made...)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	if want := writers * rounds * 3; len(versions) != want {
		t.Fatalf("%d versions written, want %d", len(versions), want)
	}
	for _, f := range followers {
		f.await(t, versions, writers*rounds)
		if got := len(f.informer.GetStore().ListKeys()); got != 20 {
			t.Errorf("the informer has %d objects, want 20", got)
		}
	}
}

func put(t *testing.T, client kubernetes.Interface, namespace, name string) *corev1.ConfigMap {
	t.Helper()
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c, err := client.CoreV1().ConfigMaps(namespace).Create(context.Background(), c, metav1.CreateOptions{})
	if err != nil {
		t.Error(err)
		return &corev1.ConfigMap{}
	}
	return c
}

// churn makes four changes and returns the versions of the first three. A client that deletes an object does not get
// the deletion's version.
func churn(t *testing.T, client kubernetes.Interface, namespace, name string) []string {
	ctx := context.Background()
	c := put(t, client, namespace, name)
	versions := []string{name + "@" + c.ResourceVersion}
	for i := range 2 {
		c.Data = map[string]string{"i": strconv.Itoa(i)}
		updated, err := client.CoreV1().ConfigMaps(namespace).Update(ctx, c, metav1.UpdateOptions{})
		if err != nil {
			t.Error(err)
			return versions
		}
		c = updated
		versions = append(versions, name+"@"+c.ResourceVersion)
	}
	if err := client.CoreV1().ConfigMaps(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	return versions
}
