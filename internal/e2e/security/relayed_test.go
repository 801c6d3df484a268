package security

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"strconv"
	"sync"

	"github.com/larder-io/larder/internal/proctest"
)

// startRelay starts a relay of the server. All later requests go to the relay.
func (s *storm) startRelay() {
	s.t.Helper()
	kubeconfig := file(s.t, s.dir, "relay.kubeconfig", fmt.Sprintf(`{"kind":"Config","apiVersion":"v1","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":"https://%s","insecure-skip-tls-verify":true}}],
		"users":[{"name":"u","user":{"token":%q}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}]}`, s.address, admin))
	port := strconv.Itoa(proctest.Port(s.t))
	relay := &server{address: "127.0.0.1:" + port, dir: s.dir}
	relay.Process = proctest.New(s.t, "the relay", func() *exec.Cmd {
		return exec.Command(*larder, "relay", "--upstream", kubeconfig, "--secure-port", port, "--resources", "configmaps,secrets,namespaces,notes.example.com")
	})
	if err := relay.Start(); err != nil {
		s.t.Fatal(err)
	}
	relay.Await(s.t, "relay of")
	s.t.Cleanup(func() { relay.end(s.t) })
	s.server = relay
}

// leaves reports whether the tenant loses all rights during the storm.
func (t tenant) leaves() bool { return t.number%4 == 0 }

// cached sends requests that the relay serves from caches. A tenant that loses its rights may be rejected.
func (s *storm) cached(ctx context.Context, who tenant, r *rand.Rand) ([]byte, error) {
	path, accept := who.collection(r)
	query := oneOf(r, "?resourceVersion=0", "?resourceVersion=1", "?resourceVersion=1&resourceVersionMatch=NotOlderThan&limit=2")
	if r.IntN(3) == 0 {
		path, accept, query = who.object(r), "application/json", "?resourceVersion=0"
	}
	code, got, err := s.send(ctx, who, "GET", path+query, "", map[string]string{"Accept": accept, "Accept-Encoding": oneOf(r, "gzip", "identity")})
	if who.leaves() {
		return fine(code, got, err, http.StatusOK, http.StatusForbidden)
	}
	return fine(code, got, err, http.StatusOK)
}

// elsewhereCached requests other tenants' objects from the caches.
func (s *storm) elsewhereCached(ctx context.Context, who tenant, r *rand.Rand) ([]byte, error) {
	other := oneOf(r, s.tenants...)
	if other.number == who.number {
		return nil, nil
	}
	path := oneOf(r, other.object(r), other.path("configmaps"), other.path("secrets")+"?watch=true", "/api/v1/secrets", "/apis/example.com/v1/notes?watch=1")
	separator := "?"
	if bytes.ContainsRune([]byte(path), '?') {
		separator = "&"
	}
	code, got, err := s.send(ctx, who, "GET", path+separator+"resourceVersion=0", "", nil)
	return fine(code, got, err, http.StatusForbidden)
}

// watchCached reads the initial events of a watch from a random revision.
func (s *storm) watchCached(ctx context.Context, who tenant, r *rand.Rand) ([]byte, error) {
	path := who.path("configmaps") + "?watch=true&timeoutSeconds=1&resourceVersion=0" + oneOf(r, "", "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
	code, got, err := s.send(ctx, who, "GET", path, "", map[string]string{"Accept": oneOf(r, streams...)})
	if who.leaves() {
		return fine(code, got, err, http.StatusOK, http.StatusForbidden)
	}
	return fine(code, got, err, http.StatusOK)
}

// staying returns an action for tenants that keep their rights.
func staying(name string, do func(context.Context, tenant, *rand.Rand) ([]byte, error)) action {
	return action{name: "relay: " + name, do: func(ctx context.Context, who tenant, r *rand.Rand) ([]byte, error) {
		if who.leaves() {
			return nil, nil
		}
		return do(ctx, who, r)
	}}
}

// blowOverRelay is blow through a relay, while every fourth tenant loses all rights. In the end, requests of these
// tenants are rejected, and their watches end.
func (s *storm) blowOverRelay(ctx context.Context) {
	s.startRelay()
	var open, watching, losing sync.WaitGroup
	for i := 0; i < len(s.tenants); i += 20 {
		open.Add(1)
		watching.Go(func() { s.watchToItsEnd(ctx, s.tenants[i], &open) })
	}
	open.Wait()
	losing.Go(func() {
		for _, who := range s.tenants {
			if who.leaves() {
				s.must(tenant{token: admin}, "DELETE", "/apis/rbac.authorization.k8s.io/v1/namespaces/"+who.namespace+"/rolebindings/tenant", "")
			}
		}
	})
	s.blow(ctx, []action{
		{name: "relay: cached", do: s.cached}, {name: "relay: cached watch", do: s.watchCached},
		{name: "relay: cached elsewhere", do: s.elsewhereCached, mute: true}, {name: "relay: elsewhere", do: s.elsewhere, mute: true},
		staying("get", s.get), staying("list", s.list), staying("write", s.write), staying("watch", s.watch),
	}, *duration/2)
	losing.Wait()
	for _, who := range s.tenants {
		if !who.leaves() {
			continue
		}
		for _, path := range []string{who.path("configmaps") + "?resourceVersion=0", who.path("configmaps/c-1") + "?resourceVersion=0", who.path("configmaps") + "?watch=1&resourceVersion=0&timeoutSeconds=1"} {
			s.Eventually(s.t, who.namespace+" is rejected", func() error {
				code, got, err := s.send(ctx, who, "GET", path, "", nil)
				if err != nil || code != http.StatusForbidden {
					return fmt.Errorf("%s: %d %v %.300s", path, code, err, got)
				}
				return nil
			})
		}
	}
	watching.Wait()
}

// watchToItsEnd watches until the relay ends the watch.
func (s *storm) watchToItsEnd(ctx context.Context, who tenant, open *sync.WaitGroup) {
	opened := sync.OnceFunc(open.Done)
	defer opened()
	req, err := http.NewRequestWithContext(ctx, "GET", "https://"+s.address+who.path("configmaps")+"?watch=1&resourceVersion=0", nil)
	if err != nil {
		s.t.Error(err)
		return
	}
	req.Header.Set("Authorization", "Bearer "+who.token)
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer resp.Body.Close()
	first := make([]byte, 1)
	_, err = io.ReadFull(resp.Body, first)
	opened()
	if err == nil {
		first, err = io.ReadAll(resp.Body)
	}
	if _, bad := who.foreign(first); err != nil || bad != nil || resp.StatusCode != http.StatusOK {
		s.t.Errorf("watch of %s: status %d, error %v, %v", who.namespace, resp.StatusCode, err, bad)
	}
}
