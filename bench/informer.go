package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// InformerConfig is a workload of client-go's own informers. They decode and keep the
// objects that they receive, so the client is no longer cheap: Inform measures how long a
// controller takes to start, WatchList measures what that costs the server.
type InformerConfig struct {
	// Name heads the result.
	Name string
	// Resource is what is watched.
	Resource schema.GroupVersionResource
	// Informers is how many start, one after the other.
	Informers int
}

// Inform records the time from each informer's start until it has synced.
func Inform(ctx context.Context, t *Target, c InformerConfig) (*Result, error) {
	if err := (loop{Load: Load{Operations: c.Informers, Clients: 1}}).check(); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(t.config)
	config.ContentType = runtime.ContentTypeProtobuf
	t.spoken.Store(clientProtocol(config))
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if _, err := informers.NewSharedInformerFactory(client, 0).ForResource(c.Resource); err != nil {
		return nil, fmt.Errorf("bench: client-go has informers of built-in resources alone, such as pods.v1. and deployments.v1.apps: %w", err)
	}
	// client-go asks again and again when it is refused: it would never sync.
	if err := t.once(ctx, Request{Path: collectionPath(c.Resource) + "?limit=1", Accept: JSON}); err != nil {
		return nil, err
	}
	rec, err := t.newRecorder(c.Name, "informer", c.Informers)
	if err != nil {
		return nil, err
	}
	defer rec.finish()
	rec.set(func(r *Result) { r.Loop = ClosedLoop })
	within, cut := t.graceful(ctx)
	defer cut()
	err = rec.measured(func() error {
		for range c.Informers {
			start := time.Now()
			err := c.sync(within, client, t.Timeout)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if t.stopped() {
				return nil
			}
			rec.record(time.Since(start), outcome{}, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rec.finish(), nil
}

// collectionPath is the path of all objects of a resource.
func collectionPath(r schema.GroupVersionResource) string {
	if r.Group == "" {
		return "/api/" + r.Version + "/" + r.Resource
	}
	return "/apis/" + r.Group + "/" + r.Version + "/" + r.Resource
}

// clientProtocol is what client-go speaks with a server that speaks both.
func clientProtocol(config *rest.Config) string {
	if len(config.NextProtos) > 0 {
		return "HTTP/1.1"
	}
	return "HTTP/2"
}

// sync runs one informer until it has all objects.
func (c *InformerConfig) sync(ctx context.Context, client kubernetes.Interface, limit time.Duration) error {
	informer, err := informers.NewSharedInformerFactory(client, 0).ForResource(c.Resource)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	var late <-chan time.Time
	if limit > 0 {
		late = time.After(limit)
	}
	running, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() { informer.Informer().Run(running.Done()) })
	defer group.Wait()
	defer stop()
	select {
	case <-informer.Informer().HasSyncedChecker().Done():
		return nil
	case <-late:
		return fmt.Errorf("%w: the informer of %s did not sync within %v", ErrTimeout, c.Resource.Resource, limit)
	case <-ctx.Done():
		return fmt.Errorf("bench: the informer of %s did not sync: %w", c.Resource.Resource, ctx.Err())
	}
}
