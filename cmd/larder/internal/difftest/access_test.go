package difftest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// identities are users: by token, or impersonated by the administrator (see request.As).
var identities = []request{
	{}, {User: "alice"}, {User: "-"}, {User: "nosuch"},
	{As: "bob"}, {As: "carol|devs"}, {As: "root|system:masters"}, {As: "system:anonymous"}, {As: "system:anonymous|system:unauthenticated"},
	{As: "system:serviceaccount:diff:default"}, {As: "system:serviceaccount:kube-system:namespace-controller"},
	{As: "system:node:n1|system:nodes"}, {As: "system:node:n1"}, {As: "system:kube-scheduler"},
	{As: "dave|devs,ops|d1|scopes=a"}, {As: "dave||d1"}, {As: "|devs"}, {As: "system:serviceaccount:Bad_:x"}, {User: "alice", As: "bob"}, {User: "nosuch", As: "bob"}, {User: "-", As: "bob"},
}

const rbacPath = "/apis/rbac.authorization.k8s.io/v1"

// access returns requests whose responses depend on the rights of a user, for each identity.
func access() []request {
	var all []request
	add := func(r request) {
		r.Accept = js
		for _, who := range identities {
			r.User, r.As = who.User, who.As
			all = append(all, r)
		}
	}
	for _, path := range []string{
		configmaps, configmaps + "/a", configmaps + "/nosuch", "/api/v1/configmaps", "/api/v1/namespaces/diff/secrets/sec", "/api/v1/namespaces/diff/pods/p/log", "/api/v1/namespaces/diff", "/api/v1/nodes/n1",
		"/api/v1/namespaces/diff/pods?fieldSelector=spec.nodeName%3Dn1", configmaps + "?watch=1&timeoutSeconds=1&resourceVersion=0", rbacPath + "/clusterroles/view", "/apis/apps/v1/namespaces/nosuch/deployments", "/apis/nosuch/v1/things", "/metrics/nosuch", "/healthz", "/livez/ping", "/version/nosuch", "/nosuch", "/api", "/apis/apps",
	} {
		add(request{Method: http.MethodGet, Path: path})
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		add(request{Method: method, Path: map[bool]string{true: configmaps, false: configmaps + "/nosuch"}[method == http.MethodPost] + "?dryRun=All", Type: mergePatch, Body: `{}`})
		add(request{Method: method, Path: "/healthz"})
	}
	for _, review := range reviews() {
		add(review)
	}
	return append(append(all, subjectReviews()...), tokenReviews()...)
}

func review(path, spec string) request {
	group, _, _ := strings.Cut(path, "/")
	kind := map[string]string{
		"selfsubjectaccessreviews": "SelfSubjectAccessReview", "selfsubjectrulesreviews": "SelfSubjectRulesReview", "selfsubjectreviews": "SelfSubjectReview",
		"subjectaccessreviews": "SubjectAccessReview", "localsubjectaccessreviews": "LocalSubjectAccessReview", "tokenreviews": "TokenReview",
	}[path[strings.LastIndex(path, "/")+1:]]
	body := fmt.Sprintf(`{"apiVersion":"%s.k8s.io/v1","kind":"%s","spec":%s}`, group, kind, spec)
	return request{Method: http.MethodPost, Path: "/apis/" + strings.Replace(path, "/", ".k8s.io/v1/", 1), Accept: js, Type: js, Body: body}
}

// reviews are self-reviews, which every user may create, and writes that RBAC restricts.
func reviews() []request {
	all := []request{
		review("authentication/selfsubjectreviews", `{}`),
		review("authorization/selfsubjectrulesreviews", `{"namespace":"diff"}`), review("authorization/selfsubjectrulesreviews", `{"namespace":"kube-system"}`), review("authorization/selfsubjectrulesreviews", `{}`),
		review("authorization/selfsubjectaccessreviews", `{}`), review("authorization/selfsubjectaccessreviews", `{"nonResourceAttributes":{"path":"/healthz","verb":"get"}}`),
		review("authorization/selfsubjectaccessreviews", `{"resourceAttributes":{"namespace":"diff","verb":"get","resource":"configmaps","name":"a"}}`),
		review("authorization/selfsubjectaccessreviews", `{"resourceAttributes":{"namespace":"diff","verb":"*","group":"*","resource":"*"}}`),
		review("authorization/selfsubjectaccessreviews", `{"resourceAttributes":{"verb":"list","resource":"pods","fieldSelector":{"rawSelector":"spec.nodeName=n1"}}}`),
	}
	for _, rule := range []string{
		`{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"]}`, `{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}`, `{"apiGroups":[""],"resources":["pods"],"verbs":["get","list"]}`,
	} {
		all = append(all, request{Method: http.MethodPost, Path: rbacPath + "/namespaces/diff/roles?dryRun=All", Type: js, Body: `{"metadata":{"name":"escalates"},"rules":[` + rule + `]}`})
	}
	for _, role := range []string{"view", "admin", "cluster-admin", "nosuch"} {
		all = append(all, request{Method: http.MethodPost, Path: rbacPath + "/namespaces/diff/rolebindings?dryRun=All", Type: js, Body: `{"metadata":{"name":"binds"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"` + role + `"},"subjects":[{"kind":"User","name":"eve"}]}`})
	}
	return all
}

// subjectReviews are reviews of another user's rights.
func subjectReviews() []request {
	var all []request
	for _, who := range []string{`"user":"alice"`, `"user":"bob"`, `"user":"root","groups":["system:masters"]`, `"user":"system:node:n1","groups":["system:nodes"],"uid":"u"`, `"groups":["devs"]`, `"user":"x","extra":{"Scopes":["a"]}`, `"user":""`} {
		for _, what := range []string{
			`"resourceAttributes":{"namespace":"diff","verb":"list","resource":"configmaps"}`, `"resourceAttributes":{"namespace":"diff","verb":"create","group":"apps","resource":"deployments"}`, `"resourceAttributes":{"verb":"get","resource":"nodes","name":"n1"}`, `"nonResourceAttributes":{"path":"/metrics","verb":"get"}`,
			`"resourceAttributes":{"verb":"get"},"nonResourceAttributes":{"path":"/x"}`, `"resourceAttributes":{"verb":"list","resource":"pods","labelSelector":{"rawSelector":"a=b"},"fieldSelector":{"requirements":[{"key":"spec.nodeName","operator":"In","values":["n1"]}]}}`, `"resourceAttributes":{"verb":"list","resource":"pods","labelSelector":{"rawSelector":"a=b","requirements":[{"key":"a","operator":"Bad"}]}}`,
		} {
			spec := "{" + who + "," + what + "}"
			all = append(all, review("authorization/subjectaccessreviews", spec), review("authorization/namespaces/diff/localsubjectaccessreviews", spec))
		}
	}
	all = append(all, review("authorization/subjectaccessreviews", `{}`))
	byAlice := all[0]
	byAlice.User = "alice"
	return append(all, byAlice)
}

// tokenReviews are reviews of tokens by several users.
func tokenReviews() []request {
	var all []request
	for _, token := range []string{"admin", "alice", "nosuch", "", "a.b.c", "eyJhbGciOiJub25lIn0.e30."} {
		for _, audiences := range []string{"", `,"audiences":["https://kubernetes.default.svc.cluster.local"]`, `,"audiences":["elsewhere"]`, `,"audiences":[""]`} {
			all = append(all, review("authentication/tokenreviews", `{"token":"`+token+`"`+audiences+`}`))
		}
	}
	for _, audiences := range []string{"", `,"audiences":["x"]`} {
		all = append(all, request{Method: http.MethodPost, Path: "/api/v1/namespaces/diff/serviceaccounts/nosuch/token", Accept: js, Type: js, Body: `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":5` + audiences + `}}`})
	}
	return all
}

// setAs sets the headers of an impersonated user: name, groups, UID and one extra field, separated by bars.
func setAs(header http.Header, as string) {
	if as == "" {
		return
	}
	parts := append(strings.Split(as, "|"), "", "", "")
	if parts[0] != "" {
		header.Set("Impersonate-User", parts[0])
	}
	if parts[1] != "" {
		header["Impersonate-Group"] = strings.Split(parts[1], ",")
	}
	if parts[2] != "" {
		header.Set("Impersonate-Uid", parts[2])
	}
	if key, value, ok := strings.Cut(parts[3], "="); ok {
		header.Set("Impersonate-Extra-"+key, value)
	}
}

// compareAccess compares responses about rights, once both servers have made bob an administrator of a namespace.
func (c *comparison) compareAccess() {
	const binding = `{"metadata":{"name":"bob"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"admin"},"subjects":[{"kind":"User","name":"bob","apiGroup":"rbac.authorization.k8s.io"}]}`
	made := c.f.stock.send(do(http.MethodPost, rbacPath+"/namespaces/diff/rolebindings", js, binding))
	if made.code != http.StatusCreated {
		c.t.Fatalf("create the binding: %d %s", made.code, made.body)
	}
	// Without a controller manager, the test aggregates the role itself.
	const role = `{"aggregationRule":null,"rules":[{"apiGroups":["","rbac.authorization.k8s.io"],"resources":["configmaps","roles","rolebindings"],"verbs":["get","list","create"]}]}`
	if a := c.f.stock.send(do(http.MethodPatch, rbacPath+"/clusterroles/admin", mergePatch, role)); a.code != http.StatusOK {
		c.t.Fatalf("update the role: %d %s", a.code, a.body)
	}
	for _, p := range []*process{c.f.stock, c.f.larder} {
		p.Eventually(c.t, "applies the rights of bob", func() error {
			a := p.send(request{Method: http.MethodGet, Path: configmaps, As: "bob"})
			if a.err != nil || a.code != http.StatusOK {
				return fmt.Errorf("%d %v", a.code, a.err)
			}
			return nil
		})
	}
	c.compareAll("access", access(), workers, c.compareReview)
}

// compareReview compares the rights of a user, except the reason and the order of rules, which vary because upstream
// iterates over bindings in random order.
func (c *comparison) compareReview(r request) string {
	if r.reads() {
		return c.compareRead(r)
	}
	var responses [2]response
	for i, p := range []*process{c.f.stock, c.f.larder} {
		responses[i] = p.write(r)
		responses[i].body = allowedBy.ReplaceAll(inOrder(responses[i].body), []byte("RBAC: allowed"))
	}
	return compare(responses[0], responses[1])
}

var allowedBy = regexp.MustCompile(`RBAC: allowed by [^}]*? to (User|Group|ServiceAccount) \\"[^"]*\\"`)

// inOrder returns a review of rules with sorted rules.
func inOrder(body []byte) []byte {
	var review map[string]any
	if !bytes.Contains(body, []byte(`"resourceRules"`)) || json.Unmarshal(body, &review) != nil {
		return body
	}
	status, _ := review["status"].(map[string]any)
	for _, rules := range status {
		if all, ok := rules.([]any); ok {
			slices.SortFunc(all, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
	}
	sorted, err := json.Marshal(review)
	if err != nil {
		return body
	}
	return sorted
}
