package flow

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime"
	defaults "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/larder-io/larder/internal/proctest"
)

// flowConfiguration returns the flow schemas and priority levels of a new cluster.
func flowConfiguration() (all []runtime.Object) {
	for _, list := range [][]*flowcontrolv1.PriorityLevelConfiguration{
		defaults.MandatoryPriorityLevelConfigurations, defaults.SuggestedPriorityLevelConfigurations,
	} {
		for _, o := range list {
			all = append(all, o.DeepCopy())
		}
	}
	for _, list := range [][]*flowcontrolv1.FlowSchema{defaults.MandatoryFlowSchemas, defaults.SuggestedFlowSchemas} {
		for _, o := range list {
			all = append(all, o.DeepCopy())
		}
	}
	return all
}

// runFlow runs a Control that has loaded objects until the test ends.
func runFlow(t testing.TB, limit int, objects ...runtime.Object) *Control {
	t.Helper()
	f, begin := prepareFlow(t, limit, objects...)
	before := f.generation.Load()
	begin()
	proctest.Eventually(t, "the configuration is loaded", func() error {
		if f.generation.Load() == before || !f.has("global-default") {
			return errors.New("not yet")
		}
		return nil
	})
	return f
}

// prepareFlow returns a Control whose informers have loaded objects, and a function that runs it until the
// test ends.
func prepareFlow(t testing.TB, limit int, objects ...runtime.Object) (f *Control, begin func()) {
	t.Helper()
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	f = New(Config{Client: client, Informers: factory, Limit: limit, Stored: func(string) (storage.Stats, error) {
		return storage.Stats{ObjectCount: 10_000, EstimatedAverageObjectSizeBytes: 5_000}, nil
	}})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	factory.Start(ctx.Done())
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
		running.Wait()
	})
	awaitWatches(t, client, len(factory.WaitForCacheSync(ctx.Done())))
	return f, func() {
		running.Go(func() {
			if err := f.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

func (c *Control) has(level string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queueSets[level] != nil
}

// flowRequest is a request of a test.
type flowRequest struct {
	info  apirequest.RequestInfo
	query string
}

// RequestInfo implements Request.
func (r *flowRequest) RequestInfo() *apirequest.RequestInfo { return &r.info }

// URL implements Request.
func (r *flowRequest) URL() *url.URL { return &url.URL{RawQuery: r.query} }

func (r *flowRequest) attributes(who user.Info) authorizer.Attributes {
	return &authorizer.AttributesRecord{
		User: who, Verb: r.info.Verb, Namespace: r.info.Namespace, APIGroup: r.info.APIGroup, Resource: r.info.Resource,
		Subresource: r.info.Subresource, Name: r.info.Name, ResourceRequest: r.info.IsResourceRequest, Path: r.info.Path,
	}
}

func onPods(verb string) *flowRequest {
	return &flowRequest{info: apirequest.RequestInfo{
		IsResourceRequest: true, Verb: verb, APIVersion: "v1", Namespace: "a", Resource: "pods", Path: "/api/v1/namespaces/a/pods",
	}}
}

var flowUsers = map[string]user.Info{
	"exempt":           &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}},
	"service-accounts": &user.DefaultInfo{Name: "system:serviceaccount:a:b", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:a", user.AllAuthenticated}},
	"global-default":   &user.DefaultInfo{Name: "u", Groups: []string{user.AllAuthenticated}},
}

// BenchmarkFlow measures flow control of a request with Control and with upstream's controller alone.
func BenchmarkFlow(b *testing.B) {
	f := runFlow(b, 600, flowConfiguration()...)
	for name, who := range flowUsers {
		for _, verb := range []string{"get", "list"} {
			r := onPods(verb)
			a := r.attributes(who)
			b.Run(name+"/"+verb, func(b *testing.B) {
				b.ReportAllocs()
				until := time.Now().Add(time.Hour)
				var seat Seat
				for b.Loop() {
					if class, ok := f.Acquire(b.Context(), a, r, false, until, &seat); !ok || class.Schema != name {
						b.Fatal(class, ok)
					}
					seat.Release()
				}
			})
		}
		b.Run(name+"/upstream", func(b *testing.B) {
			b.ReportAllocs()
			r := onPods("get")
			plain := flowcontrol.New(informers.NewSharedInformerFactory(fake.NewClientset(), 0), nil, 600)
			ended := make(chan struct{})
			close(ended)
			defer func() { _ = plain.Run(ended) }() // ends what New has started
			for b.Loop() {
				plain.Handle(b.Context(), flowcontrol.RequestDigest{RequestInfo: &r.info, User: who},
					func(*flowcontrolv1.FlowSchema, *flowcontrolv1.PriorityLevelConfiguration, string) {},
					func() flowrequest.WorkEstimate { return flowrequest.WorkEstimate{InitialSeats: 1} }, func(bool) {}, func() {})
			}
		})
	}
}

// awaitWatches waits until n watches of client are open. A watch of a fake client does not receive earlier changes,
// so a write between the list and the watch of an informer is lost.
func awaitWatches(t testing.TB, client *fake.Clientset, n int) {
	t.Helper()
	proctest.Eventually(t, "informers watch", func() error {
		watches := 0
		for _, action := range client.Actions() {
			if action.GetVerb() == "watch" {
				watches++
			}
		}
		if watches < n {
			return fmt.Errorf("%d of %d do", watches, n)
		}
		return nil
	})
}
