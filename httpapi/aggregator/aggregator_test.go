package aggregator_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/larder-io/larder/httpapi/aggregator"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// TestRemoteServersGetTheUser checks that a remote server gets this server's newest client certificate, and the user in
// headers that no client can set.
func TestRemoteServersGetTheUser(t *testing.T) {
	dir, authority := t.TempDir(), testcert.New(t, "proxies")
	certFile, keyFile := testcert.Write(t, dir, "proxy", authority.Sign(t, "first", nil, nil))
	s := newServer(t, func(c *aggregator.Config) { c.CertFile, c.KeyFile = certFile, keyFile })
	r := newRemoteServer(t)
	s.service(t)
	s.register(t, "v1", r, nil)
	s.awaitResponse(t, "/apis/example.com/v1/things?b=2&a=1", http.StatusOK, `{"path":"/apis/example.com/v1/things","query":"a=1&b=2"}`)

	resp, body := s.get(t, "/apis/example.com/v1/x", "X-Remote-User", "root", "X-Remote-Group", "system:masters", "X-Remote-Extra-Power", "much", "X-Other", "o")
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("GET: %d %s, want 200", resp.StatusCode, body)
	}
	header, shown := r.last()
	if shown != "first" {
		t.Errorf("the remote server got the certificate of %q, want first", shown)
	}
	for name, want := range map[string][]string{
		"X-Remote-User": {"ann"}, "X-Remote-Uid": {"u-1"}, "X-Remote-Group": {"dev", "ops"},
		"X-Remote-Extra-Example.com%2fscopes": {"all"}, "X-Remote-Extra-Power": nil, "X-Other": {"o"},
	} {
		if !slices.Equal(header[name], want) {
			t.Errorf("%s: %q, want %q", name, header[name], want)
		}
	}

	testcert.Write(t, dir, "proxy", authority.Sign(t, "second", nil, nil))
	proctest.Eventually(t, "the new certificate is shown", func() error {
		s.get(t, "/apis/example.com/v1/x")
		if _, shown := r.last(); shown != "second" {
			return fmt.Errorf("the remote server got the certificate of %q", shown)
		}
		return nil
	})
}

// TestRemoteServerMustBeTrusted checks that a server whose certificate is not valid for the service receives no
// request until its APIService has the CA.
func TestRemoteServerMustBeTrusted(t *testing.T) {
	s, r := newServer(t, nil), newRemoteServer(t)
	s.service(t)
	other := []byte(testcert.New(t, "another").PEM())
	s.register(t, "v1", r, func(o *apiregistrationv1.APIService) { o.Spec.CABundle = other })
	s.awaitCondition(t, "v1", apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck", "x509: certificate signed by unknown authority")
	s.awaitResponse(t, "/apis/example.com/v1/things", http.StatusServiceUnavailable, "service unavailable\n")
	if header, _ := r.last(); header != nil {
		t.Errorf("a server that is not trusted got the request %v", header)
	}
	s.edit(t, "v1", func(spec *apiregistrationv1.APIServiceSpec) { spec.CABundle = []byte(r.authority.PEM()) })
	s.awaitCondition(t, "v1", apiregistrationv1.ConditionTrue, "Passed", "all checks passed")
	s.awaitResponse(t, "/apis/example.com/v1/things", http.StatusOK, "{")
	// A server that is available but not trusted receives nothing either.
	s.edit(t, "v1", func(spec *apiregistrationv1.APIServiceSpec) { spec.CABundle = other })
	s.awaitResponse(t, "/apis/example.com/v1/things", http.StatusServiceUnavailable, "")
	s.edit(t, "v1", func(spec *apiregistrationv1.APIServiceSpec) { spec.CABundle, spec.InsecureSkipTLSVerify = nil, true })
	s.awaitResponse(t, "/apis/example.com/v1/things", http.StatusOK, "{")
}

// TestConditionsOfUnavailableServers checks that clients get 503 while a server is unavailable, and that the condition of
// its APIService says why.
func TestConditionsOfUnavailableServers(t *testing.T) {
	s, r := newServer(t, nil), newRemoteServer(t)
	const path = "/apis/example.com/v1/things"
	unavailable := func(reason, message string) {
		t.Helper()
		s.awaitCondition(t, "v1", apiregistrationv1.ConditionFalse, reason, message)
		s.awaitResponse(t, path, http.StatusServiceUnavailable, "service unavailable\n")
	}
	s.register(t, "v1", r, nil)
	unavailable("ServiceNotFound", `service/remote in "default" is not present`)

	services := s.Client.CoreV1().Services("default")
	service, err := services.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "remote"},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Name: "other", Port: 1}}},
	}, metav1.CreateOptions{})
	must(t, err)
	unavailable("ServicePortError", fmt.Sprintf(`service/remote in "default" is not listening on port %d`, r.port()))
	service.Spec.Ports = []corev1.ServicePort{{Name: "https", Port: r.port()}}
	_, err = services.Update(t.Context(), service, metav1.UpdateOptions{})
	must(t, err)
	unavailable("EndpointsNotFound", `cannot find endpointslices for service/remote in "default"`)
	_, err = s.Client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "remote-1", Labels: map[string]string{discoveryv1.LabelServiceName: "remote"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To(r.port()), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}, metav1.CreateOptions{})
	must(t, err)
	unavailable("MissingEndpoints", `endpointslices for service/remote in "default" have no addresses with port name "https"`)

	must(t, services.Delete(t.Context(), "remote", metav1.DeleteOptions{}))
	unavailable("ServiceNotFound", "")
	s.service(t)
	s.awaitCondition(t, "v1", apiregistrationv1.ConditionTrue, "Passed", "all checks passed")
	s.awaitResponse(t, path, http.StatusOK, "{")
	checkMetric(t, s, "aggregator_unavailable_apiservice", 0)
	r.setDown(true)
	s.edit(t, "v1", func(spec *apiregistrationv1.APIServiceSpec) { spec.VersionPriority++ }) // triggers a new check
	unavailable("FailedDiscoveryCheck", ": 503")
	checkMetric(t, s, "aggregator_unavailable_apiservice", 1)
	checkMetric(t, s, "aggregator_unavailable_apiservice_total", 1) // of this reason
	r.setDown(false)
	s.awaitCondition(t, "v1", apiregistrationv1.ConditionTrue, "Passed", "all checks passed")
	s.awaitResponse(t, path, http.StatusOK, "{")
	s.remove(t, "v1")
	s.awaitResponse(t, path, http.StatusNotFound, "404 page not found\n")
}

// checkMetric waits until a metric of v1.example.com has a value.
func checkMetric(t *testing.T, s *server, name string, want float64) {
	t.Helper()
	proctest.Eventually(t, fmt.Sprintf("%s of v1.example.com is %g", name, want), func() error {
		families, err := s.aggregator.Gather()
		must(t, err)
		for _, f := range families {
			if f.GetName() != name {
				continue
			}
			for _, m := range f.GetMetric() {
				if m.GetLabel()[0].GetValue() == "v1.example.com" && m.GetGauge().GetValue()+m.GetCounter().GetValue() == want {
					return nil
				}
			}
		}
		return fmt.Errorf("got %v", families)
	})
}

// TestRedirectsAreFollowedUnlessRejected checks that a remote server may redirect clients, unless redirects are
// rejected.
func TestRedirectsAreFollowedUnlessRejected(t *testing.T) {
	r := newRemoteServer(t)
	for reject, code := range map[bool]int{false: http.StatusFound, true: http.StatusBadGateway} {
		s := newServer(t, func(c *aggregator.Config) { c.RejectRedirects = reject })
		s.service(t)
		s.register(t, "v1", r, nil)
		s.awaitResponse(t, "/apis/example.com/v1/redirect", code, "")
	}
}

// TestGroupsAreListedByPriority checks that groups and versions have the order of their APIServices' priorities,
// after apiregistration.k8s.io itself, and disappear with their last APIService.
func TestGroupsAreListedByPriority(t *testing.T) {
	s := newServer(t, nil)
	for version, priority := range map[string]int32{"v1": 5, "v2": 10, "v1beta1": 5} {
		s.register(t, version, nil, func(o *apiregistrationv1.APIService) {
			o.Spec.VersionPriority, o.Spec.GroupPriorityMinimum = priority, 17950
		})
	}
	var group metav1.APIGroup
	proctest.Eventually(t, "the group is described", func() error {
		_, body := s.get(t, "/apis/example.com")
		if err := json.Unmarshal([]byte(body), &group); err != nil || len(group.Versions) != 3 {
			return fmt.Errorf("%s", body)
		}
		return nil
	})
	var versions []string
	for _, v := range group.Versions {
		versions = append(versions, v.GroupVersion)
	}
	if want := []string{"example.com/v2", "example.com/v1", "example.com/v1beta1"}; !slices.Equal(versions, want) || group.PreferredVersion.Version != "v2" {
		t.Errorf("versions %v, preferred %s; want %v, preferred v2", versions, group.PreferredVersion.Version, want)
	}
	_, body := s.get(t, "/apis")
	var all metav1.APIGroupList
	must(t, json.Unmarshal([]byte(body), &all))
	at := func(name string) int {
		return slices.IndexFunc(all.Groups, func(g metav1.APIGroup) bool { return g.Name == name })
	}
	if at("apiregistration.k8s.io") != 0 || at("") != -1 || !(at("example.com") < at("apps")) || at("example.com") < 1 {
		t.Errorf("want apiregistration.k8s.io first, and example.com before apps: %s", body)
	}
	if paths := s.aggregator.ListedPaths(); !slices.Contains(paths, "/apis/example.com") || !slices.Contains(paths, "/apis/example.com/v2") || slices.Contains(paths, "/apis//v1") {
		t.Errorf("paths %v, want those of example.com, and none of the core group", paths)
	}
	for _, version := range []string{"v1", "v2", "v1beta1"} {
		s.remove(t, version)
	}
	s.awaitResponse(t, "/apis/example.com", http.StatusNotFound, "")
}

// TestRemoteServersAreInDiscovery checks that their resources appear in aggregated discovery, and disappear with
// their APIService.
func TestRemoteServersAreInDiscovery(t *testing.T) {
	s, r := newServer(t, nil), newRemoteServer(t)
	s.service(t)
	s.register(t, "v1", r, nil)
	shown := func(want bool) {
		t.Helper()
		proctest.Eventually(t, fmt.Sprintf("things are in discovery: %v", want), func() error {
			_, body := s.get(t, "/apis", "Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
			if !strings.Contains(body, `"kind":"APIGroupDiscoveryList"`) || strings.Contains(body, `"resource":"things"`) != want {
				return errors.New(body)
			}
			return nil
		})
	}
	shown(true)
	s.remove(t, "v1")
	shown(false)
}

// TestRemoteServersAreInOpenAPI checks that the documents of their own paths are merged, and removed with their
// APIService. They serve documents of OpenAPI v3 themselves.
func TestRemoteServersAreInOpenAPI(t *testing.T) {
	s, r := newServer(t, nil), newRemoteServer(t)
	if n := len(s.aggregator.OpenAPIV2()) + len(s.aggregator.OpenAPIV3()); n != 0 {
		t.Errorf("%d documents without remote servers", n)
	}
	s.service(t)
	s.register(t, "v1", r, nil)
	other := newRemoteServer(t)
	s.register(t, "v2", other, nil)
	proctest.Eventually(t, "OpenAPI v2 is merged, with the Thing of each server", func() error {
		list := s.aggregator.OpenAPIV2()
		if len(list) != 1 {
			return fmt.Errorf("%d documents", len(list))
		}
		built, err := list[0].Build()
		must(t, err)
		things := make(map[string]string) // descriptions by path
		for path, item := range built.Paths.Paths {
			ref := item.Get.Responses.StatusCodeResponses[http.StatusOK].Schema.Ref.String()
			things[path] = built.Definitions[strings.TrimPrefix(ref, "#/definitions/")].Description
		}
		want := map[string]string{"/apis/example.com/v1/things": fmt.Sprint("of ", r.port()), "/apis/example.com/v2/things": fmt.Sprint("of ", other.port())}
		if !maps.Equal(things, want) {
			return fmt.Errorf("%v", things)
		}
		return nil
	})
	proctest.Eventually(t, "OpenAPI v3 is linked", func() error {
		if at := s.aggregator.OpenAPIV3()["apis/example.com/v1"].ServerRelativeURL; at != "/openapi/v3/apis/example.com/v1?hash=A" {
			return fmt.Errorf("URL %q", at)
		}
		return nil
	})
	s.awaitResponse(t, "/openapi/v3/apis/example.com/v1?hash=A", http.StatusOK, `{"openapi":"3.0.0"`)
	s.remove(t, "v1")
	s.remove(t, "v2")
	proctest.Eventually(t, "the documents are gone", func() error {
		if n := len(s.aggregator.OpenAPIV2()) + len(s.aggregator.OpenAPIV3()); n != 0 {
			return fmt.Errorf("%d documents are left", n)
		}
		return nil
	})
}

// TestBuiltInVersionsAreRegistered checks that each built-in version has a local APIService that is available when
// the server is ready.
func TestBuiltInVersionsAreRegistered(t *testing.T) {
	s := newServer(t, nil)
	client := s.registered.ApiregistrationV1().APIServices()
	for _, name := range []string{"v1.", "v1.apps", "v1.apiextensions.k8s.io"} {
		o, err := client.Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		if o.Spec.Service != nil || len(o.Status.Conditions) != 1 || o.Status.Conditions[0].Reason != "Local" || o.Status.Conditions[0].Status != apiregistrationv1.ConditionTrue {
			t.Errorf("%s: spec %+v, status %+v; want a local, available APIService", name, o.Spec, o.Status)
		}
	}
	if _, err := client.Get(t.Context(), "v1.apiregistration.k8s.io", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the APIService of apiregistration.k8s.io: error %v, want not found", err)
	}
	for _, check := range s.aggregator.Checks() {
		if err := check.Check(nil); err != nil {
			t.Errorf("%s: %v", check.Name(), err)
		}
	}
}

// TestRunEndsEarly checks that Run ends all goroutines if its context ends before the first update.
func TestRunEndsEarly(t *testing.T) {
	s, followed := newStopped(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	followed.Start(ctx.Done())
	must(t, s.aggregator.Run(ctx))
	followed.Shutdown()
	if err := s.aggregator.WaitReady(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("WaitReady: %v, want context.Canceled", err)
	}
}
