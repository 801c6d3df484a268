package builtin

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	"k8s.io/client-go/kubernetes/fake"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv/kvtest"
)

// visits are informers that count the addresses that their lister returns.
type visits struct {
	networkinginformers.Interface
	n int
}

func (v *visits) IPAddresses() networkinginformers.IPAddressInformer {
	addresses := v.Interface.IPAddresses()
	return visitedAddresses{addresses, addresses.Lister(), v}
}

type visitedAddresses struct {
	networkinginformers.IPAddressInformer
	networkinglisters.IPAddressLister
	visits *visits
}

func (v visitedAddresses) Lister() networkinglisters.IPAddressLister { return v }

func (v visitedAddresses) List(selector labels.Selector) ([]*networkingv1.IPAddress, error) {
	all, err := v.IPAddressLister.List(labels.Everything())
	v.visits.n += len(all)
	return all, err
}

// accept is a transport to a server that accepts every write, and responds to a creation with the object.
type accept struct{}

func (accept) RoundTrip(req *http.Request) (*http.Response, error) {
	resp := httptest.NewRecorder()
	if req.Method == http.MethodPost {
		resp.Header().Set("Content-Type", req.Header.Get("Content-Type"))
		io.Copy(resp, req.Body)
	}
	return resp.Result(), nil
}

// TestAllocationListsNoAddresses checks that an allocation and a release list no addresses, with 10 and with 2,000
// allocated ones. The gauges show the number of addresses nonetheless.
func TestAllocationListsNoAddresses(t *testing.T) {
	for i, size := range []int{10, 2000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			cidr := fmt.Sprintf("10.%d.0.0/16", i)
			objects := []runtime.Object{&networkingv1.ServiceCIDR{
				ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}},
			}}
			for n := range size {
				objects = append(objects, &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{
					Name:   fmt.Sprintf("10.%d.%d.%d", i, n/250, n%250+1),
					Labels: map[string]string{networkingv1.LabelManagedBy: ipallocator.ControllerName, networkingv1.LabelIPAddressFamily: "IPv4"},
				}})
			}
			objects = append(objects, &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("10.%d.200.1", i)}}) // of another controller
			factory := informers.NewSharedInformerFactory(fake.NewSimpleClientset(objects...), 0)
			b := newBuiltin(t, kvtest.NewMemory())
			ips, seen := b.core.serviceIPs, &visits{Interface: factory.Networking().V1()}
			ips.informers, ips.config.LoopbackClientConfig = seen, &restclient.Config{Host: "https://x.invalid", Transport: accept{}}
			seen.ServiceCIDRs().Informer()
			seen.IPAddresses().Informer()
			factory.Start(t.Context().Done())
			ended := make(chan error, 1)
			go func() { ended <- ips.run(t.Context()) }()
			t.Cleanup(func() {
				if err := <-ended; err != nil {
					t.Error(err)
				}
				factory.Shutdown()
			})
			<-ips.started
			allocator := ips.allocators[api.IPv4Protocol]
			proctest.Eventually(t, "an address is allocated", func() error {
				ip, err := allocator.AllocateNext()
				if err == nil {
					err = allocator.Release(ip)
				}
				return err
			})
			if seen.n != 0 {
				t.Errorf("got %d listed addresses, want 0", seen.n)
			}
			families, err := legacyregistry.DefaultGatherer.Gather()
			if err != nil {
				t.Fatal(err)
			}
			b.CountAddresses(families)
			want := map[string]float64{"allocated_ips": float64(size), "available_ips": float64(1<<16 - 2 - size)}
			for _, f := range families {
				for _, m := range f.GetMetric() {
					for name, value := range want {
						if f.GetName() == "kube_apiserver_clusterip_allocator_"+name && m.GetLabel()[0].GetValue() == cidr {
							delete(want, name)
							if got := m.GetGauge().GetValue(); got != value {
								t.Errorf("%s: got %v, want %v", name, got, value)
							}
						}
					}
				}
			}
			if len(want) > 0 {
				t.Errorf("got no sample of %v", want)
			}
		})
	}
}
