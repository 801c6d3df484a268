package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/larder-io/larder"

// file is one parsed Go file. pkg is its directory relative to the module
// root, "." for the root itself.
type file struct {
	pkg, path string
	test      bool
	src       []byte
	ast       *ast.File
}

// imports returns the import paths of f.
func (f *file) imports() []string {
	var paths []string
	for _, spec := range f.ast.Imports {
		paths = append(paths, strings.Trim(spec.Path.Value, `"`))
	}
	return paths
}

// local returns the module-relative package of an import path and whether it
// belongs to this module.
func local(importPath string) (string, bool) {
	return strings.CutPrefix(importPath, module+"/")
}

// tree returns every Go file of the module, without testdata and nested modules. It parses the files once, and no test
// changes them.
func tree(t *testing.T) (*token.FileSet, []*file) {
	t.Helper()
	files, err := parsedTree()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("found only %d Go files: the walk is broken", len(files))
	}
	return positions, files
}

var (
	positions  = token.NewFileSet()
	parsedTree = sync.OnceValues(parseTree)
)

// parseTree parses the files that tree returns. Their positions refer to positions.
func parseTree() ([]*file, error) {
	root := filepath.Join("..", "..")
	var files []*file
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		if d.IsDir() {
			return enter(root, rel, d)
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(positions, filepath.ToSlash(rel), src, parser.ParseComments)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		files = append(files, &file{
			pkg: path.Dir(rel), path: rel, src: src, ast: parsed,
			test: strings.HasSuffix(rel, "_test.go"),
		})
		return nil
	})
	return files, err
}

// enter skips directories that hold no source of this module.
func enter(root, rel string, d fs.DirEntry) error {
	if rel == "." {
		return nil
	}
	if d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") || d.Name() == "larder-data" {
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(root, rel, "go.mod")); err == nil {
		return filepath.SkipDir
	}
	return nil
}
