package storage

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestEverySuiteOfUpstreamIsRun checks that TestStorage runs every suite that upstream exports.
func TestEverySuiteOfUpstreamIsRun(t *testing.T) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "k8s.io/apiserver/pkg/storage/testing").Output()
	if err != nil {
		t.Fatal(err)
	}
	upstream, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	run := make(map[string]bool)
	inspect(t, "storage_test.go", func(n ast.Node) {
		if selector, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := selector.X.(*ast.Ident); ok && pkg.Name == "storagetesting" {
				run[selector.Sel.Name] = true
			}
		}
	})
	suites := 0
	for _, path := range upstream {
		inspect(t, path, func(n ast.Node) {
			decl, ok := n.(*ast.FuncDecl)
			if !ok || decl.Recv != nil || !strings.HasPrefix(decl.Name.Name, "Run") || strings.HasPrefix(decl.Name.Name, "RunBenchmark") {
				return
			}
			if suites++; !run[decl.Name.Name] {
				t.Errorf("TestStorage does not run %s", decl.Name.Name)
			}
		})
	}
	if suites < 50 {
		t.Errorf("got %d suites in %s", suites, dir)
	}
}

// inspect calls fn with every node of a Go file.
func inspect(t *testing.T, path string, fn func(ast.Node)) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		fn(n)
		return true
	})
}
