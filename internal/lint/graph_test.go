package lint

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// graph is the import policy: in "a < b", b and everything to the right of b may
// import a. Commas separate packages of one rank, which may not
// import each other. A package stands for its whole subtree unless the subtree
// has an entry of its own. Do not change this table to make a build pass.
const graph = `
internal/invariants, internal/proctest
< kv
< kv/embedded, kv/etcdmain, kv/kvtest
< kv/snapshot
< cache
< watch
< watch/mirror, watch/watchtest
< internal/flow, internal/registry/jsontext
< internal/registry/wire, internal/registry/transcode, internal/registry/servedjson, internal/registry/backend
< internal/registry/encoding, internal/relay
< internal/registry/table, internal/registry/storage, internal/registry/builtin
< internal/registry
< internal/registry/bootstrap, internal/auth, internal/admission
< httpapi/socket, httpapi/request, httpapi/costs, httpapi/managedfields, httpapi/crdvalidate, httpapi/faults
< httpapi/faults/inject, httpapi/exchange, httpapi/negotiate, httpapi/patches, httpapi/apimetrics
< httpapi/http2
< httpapi/http1, httpapi/reads, httpapi/writes, httpapi/openapi
< httpapi/customresources/versions
< httpapi/customresources, httpapi/aggregator
< httpapi/routes, httpapi/streams, httpapi/discovery
< httpapi/nethttp, httpapi/statuspage
< httpapi/identity
< httpapi/revocation, httpapi/relay
< httpapi
< cmd/larder/internal/testcontrollers, cmd/larder/internal/server/pki, cmd/larder/internal/server/datadir, cmd/larder/internal/checkpoint, cmd/larder/internal/cluster/programs
< cmd/larder/internal/server/lifecycle, cmd/larder/internal/server/heap, cmd/larder/internal/server/loopback, cmd/larder/internal/server/servingcert, cmd/larder/internal/server/storestats
< cmd/larder/internal/server, cmd/larder/internal/cluster, cmd/larder/internal/relay
< cmd/larder/internal/relay/relaytest
< cmd, internal/e2e
`

// networkOnly lists the packages that see Larder only through the network.
var networkOnly = []string{"bench", "cmd/larder-bench"}

// reserved lists the packages that may import a module, by import path prefix.
var reserved = []struct {
	prefix string
	users  []string
	tests  bool // whether any test file may import it
}{
	{"go.etcd.io/etcd/server/", []string{"kv/embedded", "kv/etcdmain", "kv/kvtest"}, false},
	{"go.etcd.io/", []string{"kv", "bench/starts"}, false},
	{"github.com/valyala/fasthttp", []string{"httpapi/http1", "bench"}, false},
	{"k8s.io/kubernetes/", []string{"internal/registry", "internal/auth", "internal/admission", "httpapi", "cmd/larder"}, true},
	{"k8s.io/", []string{"internal/flow", "internal/registry", "internal/relay", "internal/auth", "internal/admission", "httpapi", "cmd/larder", "bench", "cmd/larder-bench", "internal/e2e"}, false},
	{"k8s.io/kubernetes/cmd/", []string{"cmd/larder/internal/server"}, true},
	{"k8s.io/apiserver/pkg/storage/cacher", nil, false},
	{"k8s.io/apiserver/pkg/storage/etcd3", nil, true},
}

// lean are the packages that import only selectors of Kubernetes.
var lean = []string{"kv", "cache", "watch"}

// leanMay lists all that lean packages import from Kubernetes.
var leanMay = []string{"k8s.io/apimachinery/pkg/labels", "k8s.io/apimachinery/pkg/fields", "k8s.io/apimachinery/pkg/selection"}

// TestLibraryLinksNoServer lists the packages that a program links to follow a cluster. etcd's server must not be among
// them.
func TestLibraryLinksNoServer(t *testing.T) {
	serves := map[string]bool{"kv": false, "cache": false, "watch/mirror": false, "kv/embedded": true}
	args := []string{"list", "-f", "{{.ImportPath}} {{.Deps}}"}
	for pkg := range serves {
		args = append(args, module+"/"+pkg)
	}
	list := exec.Command("go", args...)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		path, deps, _ := strings.Cut(line, " ")
		pkg, _ := local(path)
		want, ok := serves[pkg]
		if !ok {
			t.Fatalf("go list returned %s, which was not requested", path)
		}
		delete(serves, pkg)
		if links := strings.Contains(deps, " go.etcd.io/etcd/server/"); links != want {
			t.Errorf("%s links etcd's server: %v, want %v", pkg, links, want)
		}
	}
	if len(serves) > 0 {
		t.Errorf("go list did not return %v", serves)
	}
}

func TestImportGraph(t *testing.T) {
	rank := ranks()
	_, files := tree(t)
	for _, f := range files {
		for _, imp := range f.imports() {
			if target, ok := local(imp); ok {
				checkLocal(t, rank, f, target)
				continue
			}
			checkReserved(t, f, imp)
		}
	}
}

// ranks numbers the packages of graph from the bottom up.
func ranks() map[string]int {
	rank := make(map[string]int)
	for i, line := range strings.Split(strings.TrimSpace(graph), "\n") {
		for _, pkg := range strings.Split(strings.TrimPrefix(line, "< "), ",") {
			rank[strings.TrimSpace(pkg)] = i + 1
		}
	}
	return rank
}

// entry returns the longest entry of the graph that pkg stands under.
func entry(rank map[string]int, pkg string) (string, bool) {
	for {
		if _, ok := rank[pkg]; ok {
			return pkg, true
		}
		cut := strings.LastIndexByte(pkg, '/')
		if cut < 0 {
			return "", false
		}
		pkg = pkg[:cut]
	}
}

func checkLocal(t *testing.T, rank map[string]int, f *file, target string) {
	if under(f.pkg, networkOnly) {
		if !under(target, networkOnly) {
			t.Errorf("%s imports %s: %v reach servers only over the network", f.path, target, networkOnly)
		}
		return
	}
	if f.test || f.pkg == "internal/lint" {
		return // a test may look at packages above its own
	}
	from, ok := entry(rank, f.pkg)
	if !ok {
		t.Errorf("%s: package %s is not in the import graph", f.path, f.pkg)
		return
	}
	to, ok := entry(rank, target)
	if !ok {
		t.Errorf("%s imports %s, which is not in the import graph", f.path, target)
		return
	}
	if from != to && rank[to] >= rank[from] {
		t.Errorf("%s imports %s: the graph puts %s above or beside %s", f.path, target, to, from)
	}
}

func checkReserved(t *testing.T, f *file, imp string) {
	if under(f.pkg, lean) && strings.HasPrefix(imp, "k8s.io/") {
		if !contains(leanMay, imp) {
			t.Errorf("%s imports %s: %v may import only selectors of Kubernetes", f.path, imp, lean)
		}
		return
	}
	for _, r := range reserved {
		if !strings.HasPrefix(imp, r.prefix) || (f.test && r.tests) {
			continue
		}
		if !under(f.pkg, r.users) {
			t.Errorf("%s imports %s: reserved for %v", f.path, imp, r.users)
		}
	}
}

// under reports whether pkg is one of roots or below one.
func under(pkg string, roots []string) bool {
	for _, root := range roots {
		if pkg == root || strings.HasPrefix(pkg, root+"/") {
			return true
		}
	}
	return false
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
