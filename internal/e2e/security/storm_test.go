package security

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/internal/proctest"
)

const (
	tenants   = 200
	largeOnes = 8 // every eighth tenant has many objects
	// workers act concurrently, each for one tenant after another.
	workers = 24
	// each is how often every action must be taken, whatever the duration.
	each = 20
)

// tenant is a user with a namespace. All its objects carry the tenant's mark.
type tenant struct {
	number                 int
	token, namespace, mark string
}

// large reports whether the tenant has more objects than most.
func (t tenant) large() bool { return t.number%largeOnes == 0 }

func (t tenant) path(resource string) string {
	return "/api/v1/namespaces/" + t.namespace + "/" + resource
}

// marks matches the marks of all tenants.
var marks = regexp.MustCompile(`mark([0-9]{3})x[0-9a-f]{16}q`)

// markOf returns a text that all objects of a tenant contain, and nothing else by chance.
func markOf(number int, random uint64) string { return fmt.Sprintf("mark%03dx%016xq", number, random) }

// foreign returns an error if a response contains another tenant's mark or freed memory. own counts the tenant's own
// marks.
func (t tenant) foreign(response []byte) (own int, err error) {
	if bytes.Contains(response, []byte(invariants.Pattern[:8])) {
		return 0, errors.New("contains freed memory")
	}
	for _, mark := range marks.FindAll(response, -1) {
		if string(mark) != t.mark {
			return own, fmt.Errorf("contains %s", mark)
		}
		own++
	}
	return own, nil
}

// TestForeignDataIsFound checks that foreign finds marks of other tenants and freed memory.
func TestForeignDataIsFound(t *testing.T) {
	alice, bob := tenant{mark: markOf(1, 7)}, tenant{mark: markOf(2, 7)}
	for _, c := range []struct {
		response string
		own      int
		bad      bool
	}{
		{"", 0, false},
		{"a " + alice.mark + " and " + alice.mark, 2, false},
		{"a " + alice.mark + " and " + bob.mark, 1, true},
		{alice.mark[:8] + invariants.Pattern, 0, true},
		{"mark001x", 0, false},
	} {
		if own, err := alice.foreign([]byte(c.response)); own != c.own && err == nil || (err != nil) != c.bad {
			t.Errorf("%q: %d own marks, error %v", c.response, own, err)
		}
	}
}

// storm is a running test.
type storm struct {
	*server
	t       *testing.T
	tenants []tenant
	client  *http.Client // all tenants share its connections

	mu     sync.Mutex
	taken  map[string]int // number of actions, by name
	seen   map[string]int // a tenant's own marks, by action
	failed int
}

// action is what a tenant does. It returns everything that it received.
type action struct {
	name string
	do   func(ctx context.Context, who tenant, r *rand.Rand) ([]byte, error)
	mute bool // it need not receive anything
}

// TestTenantsSeeNoForeignData checks that none of two hundred tenants receives a byte of another's data, whatever they
// do concurrently, with and without a relay.
func TestTenantsSeeNoForeignData(t *testing.T) {
	if *seed == 0 {
		*seed = time.Now().UnixNano()
	}
	t.Logf("seed %d", *seed)
	s := newStorm(t)
	s.createTenants()
	ctx, cancel := context.WithTimeout(t.Context(), 2*(*duration+proctest.Patience))
	defer cancel()
	s.blow(ctx, s.actions(), *duration)
	s.blowOverRelay(ctx)
	s.client.CloseIdleConnections()
	for _, name := range slices.Sorted(maps.Keys(s.taken)) {
		t.Logf("%-24s %6d times, %8d own marks", name, s.taken[name], s.seen[name])
	}
}

// blow has tenants take actions for the duration, and until each was taken often enough.
func (s *storm) blow(ctx context.Context, actions []action, duration time.Duration) {
	enough := time.Now().Add(duration)
	var group sync.WaitGroup
	for w := range workers {
		r := rand.New(rand.NewPCG(uint64(*seed), uint64(w)))
		group.Go(func() {
			for i := w; ctx.Err() == nil && (time.Now().Before(enough) || s.lacks(actions)); i++ {
				a := actions[i%len(actions)]
				who := s.tenants[r.IntN(len(s.tenants))]
				got, err := a.do(ctx, who, r)
				s.judge(a, who, got, err)
			}
		})
	}
	group.Wait()
	for _, a := range actions {
		if s.taken[a.name] < each || !a.mute && s.seen[a.name] == 0 {
			s.t.Errorf("%s: %d times, %d marks received: too few for a test", a.name, s.taken[a.name], s.seen[a.name])
		}
	}
}

// lacks reports whether some action was not taken often enough.
func (s *storm) lacks(actions []action) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed == 0 && slices.ContainsFunc(actions, func(a action) bool { return s.taken[a.name] < each })
}

func (s *storm) judge(a action, who tenant, got []byte, err error) {
	own, bad := who.foreign(got)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken[a.name]++
	s.seen[a.name] += own
	if bad == nil && err == nil {
		return
	}
	const most = 10
	if s.failed++; s.failed <= most {
		s.t.Errorf("%s by %s (%s): %v, %v\n%.2000q", a.name, who.namespace, who.mark, bad, err, got)
	}
}

// newStorm starts a server and creates its tenants.
func newStorm(t *testing.T) *storm {
	t.Helper()
	s := &storm{t: t, taken: make(map[string]int), seen: make(map[string]int)}
	r := rand.New(rand.NewPCG(uint64(*seed), 1<<32))
	var users strings.Builder
	for i := range tenants {
		who := tenant{number: i, token: fmt.Sprintf("token-%03d", i), namespace: fmt.Sprintf("t-%03d", i), mark: markOf(i, r.Uint64())}
		s.tenants = append(s.tenants, who)
		fmt.Fprintf(&users, "%s,user-%03d,uid-%03d,tenants\n", who.token, i, i)
	}
	s.server = serve(t, users.String(), "--authorization-mode=RBAC")
	s.client = &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: workers / 2, DisableCompression: true,
	}}
	return s
}

// createTenants gives every tenant a namespace, a role and objects.
func (s *storm) createTenants() {
	s.t.Helper()
	admin := tenant{token: admin}
	s.must(admin, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", `{"metadata":{"name":"tenant"},"rules":[`+
		`{"apiGroups":["","example.com"],"resources":["*"],"verbs":["*"]}]}`)
	s.must(admin, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition("notes", "Note", "Namespaced"))
	s.serves(s.t, "/apis/example.com/v1/notes")
	var group sync.WaitGroup
	next := make(chan tenant)
	for range workers {
		group.Go(func() {
			for who := range next {
				s.must(admin, "POST", "/api/v1/namespaces", fmt.Sprintf(`{"metadata":{"name":%q,"annotations":{"a":%q}}}`, who.namespace, who.mark))
				s.must(admin, "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/"+who.namespace+"/rolebindings", fmt.Sprintf(
					`{"metadata":{"name":"tenant"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"tenant"},`+
						`"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"user-%03d"}]}`, who.number))
				many := 6 // together large enough for a compressed list
				if who.large() {
					many = 24 // enough for a list that is compressed in pieces, and sent while it is made
				}
				for i := range many {
					s.must(admin, "POST", who.path("configmaps"), configMap(who, fmt.Sprintf("c-%d", i), 25<<10))
				}
				s.must(admin, "POST", who.path("secrets"), fmt.Sprintf(`{"metadata":{"name":"s","labels":{"l":%[1]q}},"stringData":{"a":%[1]q}}`, who.mark))
				s.must(admin, "POST", "/apis/example.com/v1/namespaces/"+who.namespace+"/notes", note(who, "n"))
			}
		})
	}
	for _, who := range s.tenants {
		next <- who
	}
	close(next)
	group.Wait()
	for _, who := range s.tenants { // the server may see the bindings in any order
		proctest.Eventually(s.t, who.namespace+" may be read by its tenant", func() error {
			code, got, err := s.send(s.t.Context(), who, "GET", who.path("secrets"), "", nil)
			if err != nil || code != http.StatusOK {
				return fmt.Errorf("%d %v %s", code, err, got)
			}
			return nil
		})
	}
}

// configMap returns a ConfigMap of about size bytes that is full of the tenant's mark.
func configMap(who tenant, name string, size int) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"l":%q},"annotations":{"a":%[2]q}},"data":{"k":%[3]q}}`,
		name, who.mark, strings.Repeat(who.mark+" ", size/len(who.mark)))
}

func note(who tenant, name string) string {
	return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Note","metadata":{"name":%q,"labels":{"l":%q}},"spec":{"text":%[2]q}}`, name, who.mark)
}

// definition returns a CRD with a schema that preserves unknown fields.
func definition(plural, kind, scope string) string {
	singular := strings.ToLower(kind)
	return fmt.Sprintf(`{"metadata":{"name":"%[1]s.example.com"},"spec":{"group":"example.com","scope":%[4]q,"names":{"plural":%[1]q,"singular":%[3]q,"kind":%[2]q},`+
		`"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`,
		plural, kind, singular, scope)
}

// serves waits until the server serves a collection.
func (s *server) serves(t *testing.T, path string) {
	t.Helper()
	proctest.Eventually(t, path+" is served", func() error {
		if a := s.send(t, admin, "GET", path, ""); a.code != http.StatusOK {
			return fmt.Errorf("%d %s", a.code, a.body)
		}
		return nil
	})
}

func (s *storm) must(who tenant, method, path, body string) {
	s.t.Helper()
	code, got, err := s.send(s.t.Context(), who, method, path, body, map[string]string{"Content-Type": "application/json"})
	if err != nil || code >= 300 {
		s.t.Errorf("%s %s: %d %v %s", method, path, code, err, got)
	}
}

// send sends a request over a connection that other tenants may also use, and returns the complete response: header,
// body as received, uncompressed body.
func (s *storm) send(ctx context.Context, who tenant, method, path, body string, header map[string]string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "https://"+s.address+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+who.token)
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	return gather(resp)
}

// gather reads a response to its end.
func gather(resp *http.Response) (int, []byte, error) {
	var all bytes.Buffer
	fmt.Fprintln(&all, resp.Status)
	_ = resp.Header.Write(&all) // to a buffer
	start := all.Len()
	if _, err := all.ReadFrom(resp.Body); err != nil {
		return resp.StatusCode, all.Bytes(), err
	}
	if resp.Header.Get("Content-Encoding") != "gzip" {
		return resp.StatusCode, all.Bytes(), nil
	}
	plain, err := gzip.NewReader(bytes.NewReader(all.Bytes()[start:]))
	if err != nil {
		return resp.StatusCode, all.Bytes(), err
	}
	_, err = io.Copy(&all, plain)
	return resp.StatusCode, all.Bytes(), err
}
