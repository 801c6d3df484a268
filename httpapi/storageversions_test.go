package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storageversion"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/httpapi/routes"
)

// publishing is upstream's manager of storage versions at some time of its work: everything
// waits but tokenreviews, which are not stored.
type publishing struct {
	storageversion.Manager
	done atomic.Bool
}

func (p *publishing) Completed() bool { return p.done.Load() }

func (p *publishing) PendingUpdate(gr schema.GroupResource) bool {
	return gr.Resource != "tokenreviews"
}

func (p *publishing) LastUpdateError(gr schema.GroupResource) error {
	if gr.Resource == "secrets" {
		return errors.New("no luck")
	}
	return nil
}

// TestWritesWaitForStorageVersions checks that while storage versions are not published, the server refuses the same
// requests as upstream's filter, in the same way.
func TestWritesWaitForStorageVersions(t *testing.T) {
	users := map[string]*user.DefaultInfo{
		"alice": {Name: "alice"}, "admin": {Name: "admin", Groups: []string{user.SystemPrivilegedGroup}},
		"itself": {Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}, "false": {Name: user.APIServerUser},
	}
	versions := new(publishing)
	f := newTestServer(t, Config{
		Delegation: Delegation{StorageVersions: versions},
		Access: Access{Authenticator: authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: users[req.Header.Get("Authorization")]}, true, nil
		})},
	}, func(*routes.Table) {})
	upstream := filters.WithStorageVersionPrecondition(http.NotFoundHandler(), versions, legacyscheme.Codecs)
	upstream = filters.WithRequestInfo(withUser(users, upstream), &apirequest.RequestInfoFactory{
		APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
	})
	client := f.client(t)
	refused := 0
	send := func(method, path, who, accept string) {
		t.Helper()
		req, err := http.NewRequest(method, "https://"+f.addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", who)
		req.Header.Set("Accept", accept)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		w := httptest.NewRecorder()
		upstream.ServeHTTP(w, req)
		got, want := fmt.Sprint(resp.StatusCode == 503), fmt.Sprint(w.Code == 503)
		if w.Code == 503 {
			refused++
			got = fmt.Sprintln(resp.StatusCode, resp.Header["Content-Type"], string(body))
			want = fmt.Sprintln(w.Code, w.Header()["Content-Type"], w.Body)
		}
		if got != want {
			t.Errorf("%s %s of %s for %s:\ngot  %s\nwant %s", method, path, who, accept, got, want)
		}
	}
	all := func() {
		for who := range users {
			for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"} {
				for _, path := range []string{
					"/version", "/api/v1", "/api/v1/namespaces/n/configmaps/c", "/api/v1/namespaces/n/configmaps", "/api/v1/namespaces/n/configmaps?watch=1",
					"/api/v1/namespaces", "/api/v1/namespaces/n", "/api/v1/namespaces/n/status", "/apis/x/v1/namespaces", "/api/v1/namespaces/n/pods/p/exec",
					"/apis/internal.apiserver.k8s.io/v1alpha1/storageversions/v", "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions/v/status", "/apis/x/v1/storageversions/v",
					"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l", "/apis/coordination.k8s.io/v1/namespaces/default/leases/l", "/apis/x/v1/namespaces/kube-system/leases/l",
					"/apis/authentication.k8s.io/v1/tokenreviews", "/apis/apps/v1/namespaces/n/deployments/d/scale",
				} {
					send(method, path, who, "application/json")
				}
			}
		}
	}
	all()
	for _, accept := range []string{"", "application/yaml", "application/vnd.kubernetes.protobuf", "text/html", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;pretty=1"} {
		send("POST", "/api/v1/namespaces/n/secrets", "alice", accept)
		send("PUT", "/apis/apps/v1/namespaces/n/deployments/d?pretty=true", "alice", accept)
	}
	if refused < 200 {
		t.Errorf("got %d refused requests, want at least 200", refused)
	}
	versions.done.Store(true)
	refused = 0
	if all(); refused > 0 {
		t.Errorf("got %d refused requests once all storage versions were published, want 0", refused)
	}
}

// withUser sets the user of a request to the one that its Authorization header names.
func withUser(users map[string]*user.DefaultInfo, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		u := users[strings.TrimSpace(req.Header.Get("Authorization"))]
		h.ServeHTTP(w, req.WithContext(apirequest.WithUser(req.Context(), u)))
	})
}
