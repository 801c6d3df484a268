package bootstrap_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storageversion"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/bootstrap"
	"github.com/larder-io/larder/internal/registry/builtin"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/kv/kvtest"
)

// versioned returns a server that serves the API of storage versions.
func versioned(t *testing.T, store *kvtest.Memory) *registrytest.Server {
	t.Helper()
	return registrytest.New(t, store, func(c *registry.Config) {
		c.APIResources = builtin.DefaultAPIResources()
		c.APIResources.EnableVersions(apiserverinternalv1alpha1.SchemeGroupVersion)
	})
}

// publishing configures a server with an ID to publish the storage versions of some resources of s through client.
func publishing(s *registrytest.Server, client *rest.Config, id string, resources ...string) (storageversion.Manager, func(*bootstrap.Config)) {
	manager := storageversion.NewDefaultManager()
	for _, info := range s.Registry.StorageVersions() {
		for _, r := range resources {
			if info.GroupResource == schema.ParseGroupResource(r) {
				manager.AddResourceInfo(info)
			}
		}
	}
	return manager, func(c *bootstrap.Config) {
		c.Identity, c.ClientConfig, c.StorageVersions = id, client, manager
	}
}

const versionsHook = "poststarthook/built-in-resources-storage-version-updater"

// TestServersPublishStorageVersions checks that each server adds its storage versions to the same objects.
func TestServersPublishStorageVersions(t *testing.T) {
	store := kvtest.NewMemory()
	for i, id := range []string{"apiserver-x", "apiserver-y"} {
		s := versioned(t, store)
		manager, publish := publishing(s, s.ClientConfig, id, "configmaps", "events", "events.events.k8s.io", "customresourcedefinitions.apiextensions.k8s.io")
		run(t, s, publish)
		if !manager.Completed() {
			t.Error("the server is ready before all storage versions were published")
		}
		list, err := s.Client.InternalV1alpha1().StorageVersions().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, v := range list.Items {
			last := v.Status.StorageVersions[len(v.Status.StorageVersions)-1]
			got = append(got, fmt.Sprintf("%s %d %s %s %s", v.Name, len(v.Status.StorageVersions), last.APIServerID, *v.Status.CommonEncodingVersion, strings.Join(last.DecodableVersions, " ")))
		}
		want := []string{
			fmt.Sprintf("apiextensions.k8s.io.customresourcedefinitions %d %s apiextensions.k8s.io/v1beta1 apiextensions.k8s.io/v1 apiextensions.k8s.io/v1beta1", i+1, id),
			fmt.Sprintf("core.configmaps %d %s v1 v1", i+1, id),
			fmt.Sprintf("core.events %d %s v1 v1 events.k8s.io/v1", i+1, id), // of both groups
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}

// failing is a transport that fails every request while fails is set.
type failing struct {
	http.RoundTripper
	fails    atomic.Bool
	requests atomic.Int64
}

func (f *failing) RoundTrip(req *http.Request) (*http.Response, error) {
	f.requests.Add(1)
	if f.fails.Load() {
		return nil, errors.New("failed")
	}
	return f.RoundTripper.RoundTrip(req)
}

// TestPublishingIsRetried checks that a server whose storage versions could not be published is not ready and retries.
// Until it succeeds, the server can be stopped at once.
func TestPublishingIsRetried(t *testing.T) {
	for name, recovers := range map[string]bool{"until it succeeds": true, "until the server stops": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := versioned(t, nil)
			client, b := rest.CopyConfig(s.ClientConfig), new(failing)
			b.fails.Store(true)
			client.Wrap(func(rt http.RoundTripper) http.RoundTripper { b.RoundTripper = rt; return b })
			manager, publish := publishing(s, client, "apiserver-x", "configmaps")
			booted, stop := start(t, s, publish)
			proctest.Eventually(t, "publishing has failed once", func() error {
				if b.requests.Load() == 0 || manager.LastUpdateError(schema.GroupResource{Resource: "configmaps"}) == nil {
					return errors.New("not yet")
				}
				return nil
			})
			for _, h := range booted.Hooks() {
				if h.Name == versionsHook && h.Check() == nil {
					t.Error("the hook is ready, want an error before the storage versions are published")
				}
			}
			for _, unready := range booted.AllowUnready() {
				if unready == versionsHook {
					t.Error("AllowUnready returned the hook")
				}
			}
			if recovers {
				b.fails.Store(false)
				wait(t, booted)
				return
			}
			stop()
			if n := b.requests.Load(); n > 7 {
				t.Errorf("got %d requests, want at most 7", n)
			}
		})
	}
}

// TestStopWhilePublishing checks that a server stops while a request that publishes hangs.
func TestStopWhilePublishing(t *testing.T) {
	s := versioned(t, nil)
	client, hung := rest.CopyConfig(s.ClientConfig), make(chan struct{}, 100)
	client.Wrap(func(http.RoundTripper) http.RoundTripper { return hanging(hung) })
	_, publish := publishing(s, client, "apiserver-x", "configmaps", "secrets")
	_, stop := start(t, s, publish)
	<-hung
	stop()
	if len(hung) > 0 {
		t.Errorf("got %d more requests after the server stopped, want 0", len(hung))
	}
}

type hanging chan struct{}

func (h hanging) RoundTrip(req *http.Request) (*http.Response, error) {
	h <- struct{}{}
	<-req.Context().Done()
	return nil, context.Cause(req.Context())
}
