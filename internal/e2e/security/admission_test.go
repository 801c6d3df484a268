package security

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// review is a request to an admission webhook.
type review struct {
	Request struct {
		Object, OldObject struct {
			Metadata struct{ Labels map[string]string }
			Data     map[string]string
			Spec     struct{ Unschedulable bool }
		}
	}
}

// reviews returns the requests that h received at a path.
func (h *hook) reviews(t *testing.T, path string) (all []review) {
	t.Helper()
	for _, body := range h.requests(path) {
		var r review
		if err := json.Unmarshal([]byte(body), &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// follow repeats a write until the webhook at path reviews it.
func (h *hook) follow(t *testing.T, path string, write func() response) {
	t.Helper()
	wait(t, "the webhook is called", func() error {
		a := write()
		if len(h.requests(path)) == 0 {
			return fmt.Errorf("the write got %d %s", a.code, a.body)
		}
		return nil
	})
}

// patchedObject patches with every patch type and checks the objects that the webhook receives.
func patchedObject(t *testing.T, f *hardenedServer) {
	h := newHook(t)
	const maps = "/api/v1/namespaces/default/configmaps"
	f.create(t, maps, `{"metadata":{"name":"patched"},"data":{"a":"before"}}`)
	h.register(t, f.server, "patched", "/patched", "UPDATE", "configmaps")
	h.follow(t, "/patched", func() response { return f.patch(t, maps+"/patched", `{"data":{"first":"1"}}`) })
	for kind, body := range map[string]string{
		mergeBody: `{"data":{"a":"merged"}}`,
		patchBody: `[{"op":"replace","path":"/data/a","value":"operated"}]`,
		"Content-Type: application/strategic-merge-patch+json": `{"data":{"a":"strategic"}}`,
		"Content-Type: application/apply-patch+yaml":           `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"patched"},"data":{"a":"applied"}}`,
	} {
		want := strings.Trim(body[strings.LastIndex(body, ":")+1:], `"}]`)
		path := maps + "/patched?force=true&fieldManager=m"
		if !strings.Contains(kind, "apply") {
			path = maps + "/patched"
		}
		f.send(t, admin, "PATCH", path, body, kind).expect(t, kind, http.StatusOK)
		all := h.reviews(t, "/patched")
		if got := all[len(all)-1].Request.Object.Data["a"]; got != want {
			t.Errorf("%s: the webhook saw %q, want %q", kind, got, want)
		}
	}
}

// oldObject changes a cached node, and checks the old object that the webhook receives.
func oldObject(t *testing.T, f *hardenedServer) {
	h := newHook(t)
	f.create(t, "/api/v1/nodes", `{"metadata":{"name":"old","labels":{"l":"before"}}}`)
	h.register(t, f.server, "old", "/old", "UPDATE", "nodes")
	h.follow(t, "/old", func() response { return f.patch(t, "/api/v1/nodes/old", `{"metadata":{"annotations":{"a":"1"}}}`) })
	f.send(t, admin, "GET", "/api/v1/nodes/old?resourceVersion=0", "").expect(t, "read from the cache", http.StatusOK)
	f.patch(t, "/api/v1/nodes/old", `{"metadata":{"labels":{"l":"after"}},"spec":{"unschedulable":true}}`).expect(t, "patch", http.StatusOK)
	all := h.reviews(t, "/old")
	r := all[len(all)-1].Request
	if r.OldObject.Metadata.Labels["l"] != "before" || r.OldObject.Spec.Unschedulable || r.Object.Metadata.Labels["l"] != "after" || !r.Object.Spec.Unschedulable {
		t.Errorf("old %+v, new %+v", r.OldObject, r.Object)
	}
}

// redirectedWebhook checks that the server does not follow a webhook's redirect.
func redirectedWebhook(t *testing.T, f *hardenedServer) {
	h := newHook(t)
	h.register(t, f.server, "redirecting", "/redirect", "CREATE", "limitranges")
	n := 0
	h.follow(t, "/redirect", func() response {
		n++
		return f.send(t, admin, "POST", "/api/v1/namespaces/default/limitranges", fmt.Sprintf(`{"metadata":{"name":"l-%d"}}`, n), jsonBody)
	})
	a := f.send(t, admin, "POST", "/api/v1/namespaces/default/limitranges", `{"metadata":{"name":"redirected"}}`, jsonBody)
	a.expect(t, "a write that the webhook reviews", http.StatusInternalServerError)
	if n := len(h.requests("/secret")); n != 0 {
		t.Errorf("the server followed the redirect %d times: %s", n, a.body)
	}
}

// switchingWebhook checks that a webhook that switches protocols and then sends nothing delays no write.
func switchingWebhook(t *testing.T, f *hardenedServer) {
	h := newHook(t)
	h.respond = func(w http.ResponseWriter, _ []byte) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return // the request ends without a response
		}
		t.Cleanup(func() { conn.Close() })
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: silence\r\n\r\n")
	}
	h.register(t, f.server, "switching", "/switch", "CREATE", "podtemplates")
	const template = `{"metadata":{"generateName":"t-"},"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}`
	create := func() response {
		return f.send(t, admin, "POST", "/api/v1/namespaces/default/podtemplates", template, jsonBody)
	}
	h.follow(t, "/switch", create)
	create().expect(t, "a write that the webhook reviews", http.StatusInternalServerError)
}

const pods = "/api/v1/namespaces/default/pods"

// ephemeral adds an ephemeral container to a pod.
func (h *hardenedServer) ephemeral(t *testing.T, name, container string) response {
	t.Helper()
	return h.patch(t, pods+"/"+name+"/ephemeralcontainers", `{"spec":{"ephemeralContainers":[`+container+`]}}`)
}

func imagePolicy(t *testing.T, f *hardenedServer) {
	f.send(t, admin, "POST", pods, pod("bad-image", "forbidden-image", ""), jsonBody).expect(t, "a pod with a forbidden image", http.StatusForbidden)
	f.create(t, pods, pod("good-image", "i", ""))
	f.ephemeral(t, "good-image", `{"name":"e","image":"forbidden-image"}`).expect(t, "an ephemeral container with a forbidden image", http.StatusForbidden)
	f.ephemeral(t, "good-image", `{"name":"e","image":"j"}`).expect(t, "an ephemeral container with another image", http.StatusOK)
}

func mountableSecrets(t *testing.T, f *hardenedServer) {
	f.create(t, "/api/v1/namespaces/default/secrets", `{"metadata":{"name":"hidden"},"data":{}}`)
	f.create(t, "/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"modest","annotations":{"kubernetes.io/enforce-mountable-secrets":"true"}},"automountServiceAccountToken":false}`)
	const modest = `,"serviceAccountName":"modest"`
	for what, use := range map[string]string{
		"envFrom": `"envFrom":[{"secretRef":{"name":"hidden"}}]`,
		"env":     `"env":[{"name":"a","valueFrom":{"secretKeyRef":{"name":"hidden","key":"k"}}}]`,
	} {
		for _, list := range []string{"containers", "initContainers"} {
			more := ""
			if list == "initContainers" {
				more = `,"containers":[{"name":"c","image":"i"}]`
			}
			body := fmt.Sprintf(`{"metadata":{"name":"takes"},"spec":{%q:[{"name":"x","image":"i",%s}]%s%s}}`, list, use, more, modest)
			f.send(t, admin, "POST", pods, body, jsonBody).expect(t, what+" of "+list, http.StatusForbidden)
		}
	}
	f.create(t, pods, pod("modest", "i", modest))
	for _, use := range []string{`"envFrom":[{"secretRef":{"name":"hidden"}}]`, `"env":[{"name":"a","valueFrom":{"secretKeyRef":{"name":"hidden","key":"k"}}}]`} {
		f.ephemeral(t, "modest", `{"name":"e","image":"i",`+use+`}`).expect(t, "an ephemeral container with "+use, http.StatusForbidden, http.StatusInternalServerError)
	}
	if a := f.send(t, admin, "GET", pods+"/modest", ""); strings.Contains(a.body, "ephemeralContainers") {
		t.Errorf("the pod has an ephemeral container: %s", a.body)
	}
	f.ephemeral(t, "modest", `{"name":"e","image":"i"}`).expect(t, "one without", http.StatusOK)
}

// ownNode registers the node of the token node.
func (h *hardenedServer) ownNode(t *testing.T) {
	t.Helper()
	h.send(t, node, "POST", "/api/v1/nodes", `{"metadata":{"name":"node-1"}}`, jsonBody).expect(t, "the node registers itself", http.StatusCreated, http.StatusConflict)
}

func mirrorPodClaims(t *testing.T, f *hardenedServer) {
	f.ownNode(t)
	mirror := func(name, more string) string {
		owner := strings.Trim(f.send(t, admin, "GET", "/api/v1/nodes/node-1", "").uid(), `"`)
		return fmt.Sprintf(`{"metadata":{"name":%q,"annotations":{"kubernetes.io/config.mirror":"m"},"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"node-1","uid":%q,"controller":true}]},`+
			`"spec":{"nodeName":"node-1","automountServiceAccountToken":false,"containers":[{"name":"c","image":"i"}]%s}`, name, owner, more)
	}
	f.send(t, node, "POST", pods, mirror("mirror", "")+"}", jsonBody).expect(t, "a mirror pod", http.StatusCreated)
	f.send(t, node, "POST", pods, mirror("claims", `,"resourceClaims":[{"name":"d","resourceClaimName":"device"}]`)+"}", jsonBody).
		expect(t, "a mirror pod with claims", http.StatusForbidden)
	f.send(t, node, "PATCH", pods+"/mirror/status", `{"status":{"resourceClaimStatuses":[{"name":"d","resourceClaimName":"device"}]}}`, mergeBody).
		expect(t, "claims in its status", http.StatusForbidden, http.StatusUnprocessableEntity)
	a := f.send(t, node, "POST", pods, mirror("claims", "")+`,"status":{"resourceClaimStatuses":[{"name":"d","resourceClaimName":"device"}]}}`, jsonBody)
	if a.code < 400 && strings.Contains(a.body, "device") {
		t.Errorf("a new mirror pod with claims in its status: %d %s", a.code, a.body)
	}
}

// uid returns the UID of the object in a response.
func (a response) uid() string {
	var o struct{ Metadata struct{ UID string } }
	_ = json.Unmarshal([]byte(a.body), &o) // without a UID the result is "", which no object has
	return o.Metadata.UID
}

func nodeOwner(t *testing.T, f *hardenedServer) {
	f.ownNode(t)
	const owners = `"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"gone","uid":"12345678-1234-1234-1234-123456789012"}]`
	f.send(t, node, "PATCH", "/api/v1/nodes/node-1", `{"metadata":{`+owners+`}}`, mergeBody).expect(t, "a node that sets its owner", http.StatusForbidden)
	f.send(t, node, "PATCH", "/api/v1/nodes/node-1/status", `{"metadata":{`+owners+`}}`, mergeBody).expect(t, "a node that sets its owner in its status", http.StatusForbidden, http.StatusOK)
	if a := f.send(t, admin, "GET", "/api/v1/nodes/node-1", ""); strings.Contains(a.body, "ownerReferences") {
		t.Errorf("the node has an owner: %s", a.body)
	}
	f.send(t, node, "PATCH", "/api/v1/nodes/node-1", `{"metadata":{"annotations":{"seen":"`+time.Now().Format("15")+`"}}}`, mergeBody).expect(t, "a change that a node may make", http.StatusOK)
}
