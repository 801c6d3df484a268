package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
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
	if err := (loop{ops: c.Informers, clients: 1}).check(); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(t.config)
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	rec, err := t.newRecorder(c.Name, "informer", c.Informers)
	if err != nil {
		return nil, err
	}
	defer rec.finish()
	err = rec.measured(func() error {
		for range c.Informers {
			start := time.Now()
			err := c.sync(ctx, client)
			rec.record(time.Since(start), 0, err)
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return rec.finish(), nil
}

// sync runs one informer until it has all objects.
func (c *InformerConfig) sync(ctx context.Context, client kubernetes.Interface) error {
	informer, err := informers.NewSharedInformerFactory(client, 0).ForResource(c.Resource)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	running, stop := context.WithCancel(ctx)
	var group errgroup.Group
	group.Go(func() error {
		informer.Informer().Run(running.Done())
		return nil
	})
	defer group.Wait()
	defer stop()
	select {
	case <-informer.Informer().HasSyncedChecker().Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("bench: the informer of %s did not sync: %w", c.Resource.Resource, ctx.Err())
	}
}
