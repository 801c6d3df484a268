package lint

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// replaced lists upstream's code that is linked but does not run, or not for every request, because Larder's own code
// does its work. A feature gate that it reads must be read by Larder, too, unless idle gives a reason. An entry is a
// package without those below it, or a file. `deadcode -filter k8s.io ./cmd/larder`, of golang.org/x/tools, lists
// most candidates.
var replaced = []string{
	"k8s.io/apiextensions-apiserver/pkg/apiserver/customresource_handler.go",
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options",
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi",
	"k8s.io/apiextensions-apiserver/pkg/controller/openapiv3",
	"k8s.io/apiserver/pkg/endpoints",
	"k8s.io/apiserver/pkg/endpoints/filters",
	"k8s.io/apiserver/pkg/endpoints/handlers/get.go",
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters",
	"k8s.io/apiserver/pkg/endpoints/handlers/watch.go",
	"k8s.io/apiserver/pkg/endpoints/request",
	"k8s.io/apiserver/pkg/server",
	"k8s.io/apiserver/pkg/server/options",
	"k8s.io/apiserver/pkg/storage",
	"k8s.io/apiserver/pkg/storage/cacher",
	"k8s.io/apiserver/pkg/storage/cacher/metrics",
	"k8s.io/apiserver/pkg/storage/cacher/store",
	"k8s.io/apiserver/pkg/storage/etcd3",
	"k8s.io/apiserver/pkg/storage/etcd3/metrics",
	"k8s.io/apiserver/pkg/storage/storagebackend/factory",
	"k8s.io/kube-aggregator/pkg/apiserver",
	"k8s.io/kubernetes/pkg/controlplane",
	"k8s.io/kubernetes/pkg/controlplane/apiserver",
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer",
	"k8s.io/kubernetes/pkg/kubeapiserver/options",
	"k8s.io/kubernetes/pkg/registry/core/rest/storage_core.go",
}

// idle has the reasons why clients cannot notice the gates that replaced code reads and ours does not.
var idle = map[string]string{
	"APIServingWithRoutine":                    "says on which goroutine a request is served",
	"BtreeWatchCache":                          locked,
	"ConsistentListFromCache":                  "says what flow control estimates, by upstream's estimator, which runs here; the result is the same",
	"ConcurrentWatchObjectDecode":              "says how many goroutines decode the events of one watch of etcd",
	"ListFromCacheSnapshot":                    "says whether a list at an exact revision is read from the cache or from etcd; its result is the same",
	"ResilientWatchCacheInitialization":        "says which reads fail before a cache has loaded: here they wait for it",
	"SeparateCacheWatchRPC":                    "says by which connection etcd is watched",
	"ServiceAccountTokenNodeBinding":           locked,
	"ServiceAccountTokenNodeBindingValidation": locked,
	"ServiceAccountTokenPodNodeInfo":           locked,
	"StructuredAuthenticationConfiguration":    "is read by the options' Validate, which runs here; ApplyTo does not",
}

const locked = "cannot be changed in any version that --emulated-version takes"

// TestEveryGateIsRead checks that a feature gate of kube-apiserver has the same effect here. The code that reads it
// is upstream's and runs here, or is in this module, or does not exist.
func TestEveryGateIsRead(t *testing.T) {
	pkgs := gatePackages(t)
	gates := make(map[string]map[string]string) // by package and constant
	for _, p := range pkgs {
		if declared := p.gates(); len(declared) > 0 {
			gates[p.path] = declared
		}
	}
	here, there := make(map[string]bool), make(map[string][]string) // by gate: read here, by replaced code
	used := make(map[string]bool)
	for _, p := range pkgs {
		for _, f := range p.files {
			for gate := range f.reads(gates, p.path) {
				switch entry := replacedBy(p.path, f.path); {
				case strings.HasPrefix(p.path, module):
					here[gate] = true
				case entry != "":
					used[entry] = true
					there[gate] = append(there[gate], p.path+"/"+f.path)
				}
			}
		}
	}
	for _, gate := range slices.Sorted(maps.Keys(there)) {
		if reason := idle[gate]; !here[gate] && reason == "" {
			t.Errorf("nothing here reads the feature gate %s, which %v does: implement it as upstream does, or add the reason why clients cannot notice it to idle", gate, there[gate])
		}
	}
	for gate := range idle {
		if here[gate] || there[gate] == nil {
			t.Errorf("remove %s from idle: this module reads it, or no replaced code does", gate)
		}
	}
	for _, entry := range replaced {
		if !used[entry] {
			t.Errorf("replaced has %s, which reads no feature gate", entry)
		}
	}
}

// replacedBy returns the entry of replaced that a file of a package falls under, "" if none.
func replacedBy(pkg, file string) string {
	for _, entry := range []string{pkg, pkg + "/" + file} {
		if slices.Contains(replaced, entry) {
			return entry
		}
	}
	return ""
}

// gatePackage is the code that may declare or read feature gates of one package.
type gatePackage struct {
	path  string
	files []gateFile
}

type gateFile struct {
	path string
	ast  *ast.File
}

// gatePackages parses the linked packages of larder and kube-apiserver that concern feature gates.
func gatePackages(t *testing.T) []gatePackage {
	list := exec.Command("go", "list", "-e", "-deps", "-f", `{{.ImportPath}}|{{.Dir}}|{{join .GoFiles ","}}`, module+"/cmd/larder", "k8s.io/kubernetes/cmd/kube-apiserver")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	var pkgs []gatePackage
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSpace(line), "|")
		if !strings.HasPrefix(fields[0], "k8s.io/") && !strings.HasPrefix(fields[0], module) {
			continue
		}
		p := gatePackage{path: fields[0]}
		for _, name := range strings.Split(fields[2], ",") {
			src, err := os.ReadFile(filepath.Join(fields[1], name))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(src, []byte("eatures\"")) && !bytes.Contains(src, []byte("logs/api/v1\"")) && !bytes.Contains(src, []byte("/featuregate\"")) && !bytes.Contains(src, []byte(" Feature = \"")) {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			p.files = append(p.files, gateFile{name, parsed})
		}
		pkgs = append(pkgs, p)
	}
	return pkgs
}

// gates returns the names of the gates that p declares, by constant.
func (p *gatePackage) gates() map[string]string {
	found := make(map[string]string)
	for _, f := range p.files {
		for _, d := range f.ast.Decls {
			group, ok := d.(*ast.GenDecl)
			if !ok || group.Tok != token.CONST {
				continue
			}
			for _, spec := range group.Specs {
				value := spec.(*ast.ValueSpec)
				if len(value.Values) != 1 || typeName(value.Type) != "Feature" {
					continue
				}
				if name, ok := value.Values[0].(*ast.BasicLit); ok {
					found[value.Names[0].Name] = strings.Trim(name.Value, `"`)
				}
			}
		}
	}
	return found
}

// typeName returns the last part of a type's name.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// reads returns the gates of other packages that f, of pkg, names.
func (f *gateFile) reads(gates map[string]map[string]string, pkg string) map[string]bool {
	imported := make(map[string]map[string]string)
	for _, spec := range f.ast.Imports {
		from := strings.Trim(spec.Path.Value, `"`)
		name := path.Base(from)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if gates[from] != nil {
			imported[name] = gates[from]
		}
	}
	found := make(map[string]bool)
	if len(imported) == 0 || gates[pkg] != nil {
		return found
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if selector, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := selector.X.(*ast.Ident); ok {
				if gate := imported[x.Name][selector.Sel.Name]; gate != "" {
					found[gate] = true
				}
			}
		}
		return true
	})
	return found
}
