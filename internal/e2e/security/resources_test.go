package security

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

const (
	groupPath = "/apis/example.com/v1/"
	crdPath   = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// define makes h serve a custom resource until the test ends.
func (h *hardenedServer) define(t *testing.T, plural, kind, scope string) {
	t.Helper()
	h.create(t, crdPath, definition(plural, kind, scope))
	t.Cleanup(func() { h.send(t, admin, "DELETE", crdPath+"/"+plural+".example.com", "") })
	h.serves(t, groupPath+plural)
}

// custom returns the JSON of a custom resource.
func custom(kind, name, text string) string {
	return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":%q,"metadata":{"name":%q},"spec":{"text":%q}}`, kind, name, text)
}

// clusterScoped has alice, who has all rights in one namespace, access cluster-scoped objects. It also checks that no
// user can access them by a namespaced path.
func clusterScoped(t *testing.T, f *hardenedServer) {
	f.define(t, "realms", "Realm", "Cluster")
	f.create(t, groupPath+"realms", custom("Realm", "r", "kept"))
	f.create(t, "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", `{"metadata":{"name":"all"},"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`)
	f.create(t, "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", `{"metadata":{"name":"all"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"all"},`+
		`"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"alice"}]}`)
	t.Cleanup(func() {
		f.send(t, admin, "DELETE", "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings/all", "")
	})
	wait(t, "alice may act in her namespace", func() error {
		if a := f.send(t, alice, "GET", "/api/v1/namespaces/default/configmaps", ""); a.code != http.StatusOK {
			return fmt.Errorf("%d %s", a.code, a.body)
		}
		return nil
	})
	const inside = groupPath + "namespaces/default/realms"
	for _, c := range []struct{ method, path, body, kind string }{
		{"GET", inside, "", ""}, {"GET", inside + "?watch=true&timeoutSeconds=1", "", ""}, {"GET", inside + "/r", "", ""}, {"GET", inside + "/r/status", "", ""},
		{"POST", inside, custom("Realm", "s", "mine"), jsonBody}, {"PUT", inside + "/r", custom("Realm", "r", "mine"), jsonBody},
		{"PATCH", inside + "/r", `{"spec":{"text":"mine"}}`, mergeBody}, {"DELETE", inside + "/r", "", ""}, {"DELETE", inside, "", ""},
	} {
		for _, token := range []string{alice, admin} {
			a := f.send(t, token, c.method, c.path, c.body, c.kind+oneLine(c.kind))
			a.expect(t, token+" "+c.method+" "+c.path, http.StatusNotFound, http.StatusForbidden)
			if strings.Contains(a.body, "kept") {
				t.Errorf("the response to %s %s has the object: %s", c.method, c.path, a.body)
			}
		}
	}
	if a := f.send(t, admin, "GET", groupPath+"realms", ""); !strings.Contains(a.body, "kept") || strings.Contains(a.body, "mine") {
		t.Errorf("objects afterwards: %s", a.body)
	}
}

// oneLine replaces an empty header line with a harmless one.
func oneLine(kind string) string {
	if kind == "" {
		return "X-Nothing: 0"
	}
	return ""
}

// otherResource has alice, who has all rights on one custom resource, access others of the group whose names begin
// with the same letters.
func otherResource(t *testing.T, f *hardenedServer) {
	for plural, kind := range map[string]string{"widgets": "Widget", "widgetsx": "WidgetX", "vaults": "Vault"} {
		f.define(t, plural, kind, "Namespaced")
		f.create(t, groupPath+"namespaces/default/"+plural, custom(kind, "a", "text of "+plural+" "))
	}
	f.bind(t, "widgets", "alice", `{"apiGroups":["example.com"],"resources":["widgets","widgets/status"],"verbs":["*"]}`)
	wait(t, "alice may read widgets", func() error {
		if a := f.send(t, alice, "GET", groupPath+"widgets", ""); a.code != http.StatusOK || !strings.Contains(a.body, "text of widgets ") {
			return fmt.Errorf("%d %s", a.code, a.body)
		}
		return nil
	})
	up := []string{"..", "%2e%2e", "%2E%2E", "..%2f", "%2e%2e%2f", "../..", "%2e%2e/%2e%2e", "..%2f..%2f", ".", "%2e", "default%2f..", "..%00", "..;"}
	var paths []string
	for _, u := range up {
		for _, target := range []string{"vaults", "widgetsx", "vaults/default", "vaults/default/a", "vaults%2fdefault%2fa"} {
			paths = append(paths, groupPath+"namespaces/"+u+"/widgets/"+target, groupPath+"namespaces/default/widgets/"+u+"/"+target, groupPath+"widgets/"+u+"/"+target,
				groupPath+"namespaces/"+u+"%2f"+target+"/widgets", groupPath+"namespaces/default/widgets/"+u+"%2f"+target)
		}
		paths = append(paths, groupPath+"namespaces/"+u+"/widgets", groupPath+"namespaces/default/widgets/"+u)
	}
	for _, path := range paths {
		for _, query := range []string{"", "?watch=true&timeoutSeconds=1", "?resourceVersion=0"} {
			a := f.send(t, alice, "GET", path+query, "")
			if strings.Contains(a.body, "text of vaults") || strings.Contains(a.body, "text of widgetsx") {
				t.Errorf("GET %s%s: %d %s", path, query, a.code, a.body)
			}
			if a.code == http.StatusOK && strings.Contains(query, "watch") && !strings.ContainsAny(path, ";") && !strings.Contains(path, "%00") {
				t.Errorf("a watch of %s%s was opened", path, query)
			}
		}
	}
	for _, query := range []string{"", "?resourceVersion=0", "?limit=10", "?watch=true&timeoutSeconds=1"} {
		if a := f.send(t, alice, "GET", groupPath+"widgets"+query, ""); a.code != http.StatusOK || strings.Contains(a.body, "text of vaults") || strings.Contains(a.body, "text of widgetsx") {
			t.Errorf("GET widgets%s: %d %s", query, a.code, a.body)
		}
	}
}

// keyTraversal writes objects with names that would form other keys. The user has all rights, so only the names can be
// rejected.
func keyTraversal(t *testing.T, f *hardenedServer) {
	before := f.send(t, admin, "GET", "/api/v1/secrets", "").body
	const secret = `{"metadata":{"name":%s},"data":{}}`
	for _, name := range []string{"..", ".", "../secrets/x", "a/b", "/", "a%2fb", "a\\u0000b", "..\\u002fsecrets", strings.Repeat("a", 254)} {
		quoted := `"` + name + `"`
		if name == "/" {
			quoted = `"/"`
		}
		for _, path := range []string{"/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/" + strings.ReplaceAll(name, `\u0000`, "%00") + "/configmaps"} {
			a := f.send(t, admin, "POST", path, fmt.Sprintf(secret, quoted), jsonBody)
			if a.code < 400 {
				t.Errorf("POST %s of %s: %d %s", path, name, a.code, a.body)
			}
		}
	}
	for _, path := range []string{"configmaps/..", "configmaps/%2e%2e", "configmaps/..%2f..%2fsecrets%2fdefault%2fx", "configmaps/%2e%2e%2fx", "configmaps/a%2fb"} {
		for method, body := range map[string]string{"PUT": fmt.Sprintf(secret, `"x"`), "PATCH": `{"data":{"a":"b"}}`, "DELETE": ""} {
			kind := jsonBody
			if method == "PATCH" {
				kind = mergeBody
			}
			if a := f.send(t, admin, method, "/api/v1/namespaces/default/"+path, body, kind); a.code < 400 {
				t.Errorf("%s %s: %d %s", method, path, a.code, a.body)
			}
		}
	}
	version := regexp.MustCompile(`"resourceVersion":"[0-9]*"`)
	if after := f.send(t, admin, "GET", "/api/v1/secrets", "").body; version.ReplaceAllString(after, "") != version.ReplaceAllString(before, "") {
		t.Errorf("secrets before: %s\nafter: %s", before, after)
	}
}

// externalIPs checks that the plugin DenyServiceExternalIPs rejects external IPs.
func externalIPs(t *testing.T, f *hardenedServer) {
	const services = "/api/v1/namespaces/default/services"
	const service = `{"metadata":{"name":"ext"},"spec":{"ports":[{"port":80}]%s}}`
	f.send(t, admin, "POST", services, fmt.Sprintf(service, `,"externalIPs":["203.0.113.7"]`), jsonBody).expect(t, "a service with an external IP", http.StatusForbidden)
	f.create(t, services, fmt.Sprintf(service, ""))
	f.patch(t, services+"/ext", `{"spec":{"externalIPs":["203.0.113.7"]}}`).expect(t, "add one", http.StatusForbidden)
}

// endpoints checks that the roles for users of a namespace do not allow writes of endpoints, which direct traffic.
func endpoints(t *testing.T, f *hardenedServer) {
	for _, name := range []string{"admin", "edit", "system:aggregate-to-edit", "system:aggregate-to-admin"} {
		var role struct {
			Rules []struct {
				APIGroups, Resources, Verbs []string
			}
		}
		a := f.send(t, admin, "GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/"+name, "")
		if err := json.Unmarshal([]byte(a.body), &role); err != nil || a.code != http.StatusOK {
			t.Fatalf("%s: %d %v", name, a.code, err)
		}
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				if verbs := strings.Join(rule.Verbs, " "); (resource == "endpoints" || resource == "endpointslices" || resource == "*") &&
					regexp.MustCompile(`create|update|patch|\*`).MatchString(verbs) {
					t.Errorf("%s allows to %s %s", name, verbs, resource)
				}
			}
		}
	}
}

// leadingZeros checks that an address with leading zeros is rejected, or keeps its decimal meaning and its place in the
// range.
func leadingZeros(t *testing.T, f *hardenedServer) {
	const services = "/api/v1/namespaces/default/services"
	for i, address := range []string{"10.0.0.010", "010.0.0.9", "0012.0.0.1"} {
		a := f.send(t, admin, "POST", services, fmt.Sprintf(`{"metadata":{"name":"zeros-%d"},"spec":{"clusterIP":%q,"ports":[{"port":80}]}}`, i, address), jsonBody)
		if a.code < 400 {
			t.Errorf("cluster IP %s: %d %s", address, a.code, a.body)
		}
	}
	for i, cidr := range []string{"010.0.0.0/8", "10.0.0.0/08"} {
		a := f.send(t, admin, "POST", "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
			fmt.Sprintf(`{"metadata":{"name":"zeros-%d"},"spec":{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":%q}}]}]}}`, i, cidr), jsonBody)
		if a.code < 400 {
			t.Errorf("policy for %s: %d %s", cidr, a.code, a.body)
		}
	}
}
