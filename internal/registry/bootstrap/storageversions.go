package bootstrap

import (
	"context"
	"net/http"
	"runtime"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

const (
	storageVersionsHook = "built-in-resources-storage-version-updater"

	// storageVersionsInterval is how often the storage versions are published again.
	storageVersionsInterval = 10 * time.Minute
)

// publishStorageVersions publishes the storage versions after this server has its Lease, because versions of servers
// without a Lease are deleted. It is ready when all are published, and then reverts changes (kube-aggregator
// pkg/apiserver/apiserver.go).
func (c *Config) publishStorageVersions(ctx context.Context, ready func()) error {
	if !c.awaitIdentity(ctx) {
		return nil
	}
	manager, config := c.StorageVersions, rest.CopyConfig(c.ClientConfig)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return goexitTransport{ctx, next} })
	for {
		round := make(chan struct{})
		go func() { // leaving may end this goroutine
			defer close(round)
			manager.UpdateStorageVersions(config, c.Identity)
		}()
		<-round
		interval := storageVersionsInterval
		switch {
		case manager.Completed():
			ready()
		case ctx.Err() == nil:
			interval = c.RetryInterval
			klog.ErrorS(nil, "Not all storage versions are published, will retry", "interval", interval)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// awaitIdentity blocks until this server has its Lease, and returns false if ctx ended before.
func (c *Config) awaitIdentity(ctx context.Context) bool {
	const interval = 100 * time.Millisecond
	err := wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		_, err := c.Client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, c.Identity, metav1.GetOptions{})
		return err == nil, nil
	})
	return err == nil
}

// goexitTransport is a transport for callers that take no context. A request after the end of ctx ends its goroutine.
// Otherwise upstream's manager would retry with pauses for each resource.
type goexitTransport struct {
	ctx  context.Context
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (g goexitTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := g.next.RoundTrip(req.WithContext(g.ctx))
	if g.ctx.Err() != nil {
		if err == nil {
			resp.Body.Close()
		}
		runtime.Goexit()
	}
	return resp, err
}
