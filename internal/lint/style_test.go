package lint

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/token"
	"strings"
	"testing"
)

const (
	maxFileLines = 600
	maxFuncLines = 80
)

func TestOnePackageDocEach(t *testing.T) {
	_, files := tree(t)
	docs := make(map[string][]string)
	for _, f := range files {
		if f.test {
			continue
		}
		if _, ok := docs[f.pkg]; !ok {
			docs[f.pkg] = nil
		}
		if f.ast.Doc != nil {
			docs[f.pkg] = append(docs[f.pkg], f.path)
		}
	}
	for pkg, at := range docs {
		if len(at) != 1 {
			t.Errorf("package %s has %d package docs %v: write one", pkg, len(at), at)
		}
	}
}

func TestExportedNamesAreDocumented(t *testing.T) {
	fset, files := tree(t)
	for _, f := range files {
		if f.test {
			continue
		}
		for _, decl := range f.ast.Decls {
			for _, name := range undocumented(decl) {
				t.Errorf("%s: exported %s has no doc", fset.Position(name.Pos()), name.Name)
			}
		}
	}
}

// undocumented lists the exported names that decl introduces without a doc.
// Methods of unexported types and names in a documented group pass.
func undocumented(decl ast.Decl) []*ast.Ident {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) {
			return []*ast.Ident{d.Name}
		}
	case *ast.GenDecl:
		if d.Doc != nil {
			return nil
		}
		return undocumentedSpecs(d)
	}
	return nil
}

func undocumentedSpecs(d *ast.GenDecl) []*ast.Ident {
	var names []*ast.Ident
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && s.Doc == nil {
				names = append(names, s.Name)
			}
		case *ast.ValueSpec:
			if s.Doc == nil && s.Comment == nil && s.Names[0].IsExported() {
				names = append(names, s.Names[0])
			}
		}
	}
	return names
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	name := receiver(d)
	return name == "" || ast.IsExported(name)
}

func TestSizes(t *testing.T) {
	fset, files := tree(t)
	for _, f := range files {
		if f.test {
			continue
		}
		if lines := bytes.Count(f.src, []byte("\n")); lines > maxFileLines {
			t.Errorf("%s has %d lines, more than %d: split it by concept", f.path, lines, maxFileLines)
		}
		for _, decl := range f.ast.Decls {
			d, ok := decl.(*ast.FuncDecl)
			if !ok || d.Body == nil {
				continue
			}
			if lines := fset.Position(d.End()).Line - fset.Position(d.Pos()).Line + 1; lines > maxFuncLines {
				t.Errorf("%s: %s has %d lines, more than %d", fset.Position(d.Pos()), d.Name.Name, lines, maxFuncLines)
			}
		}
	}
}

func TestNoInit(t *testing.T) {
	fset, files := tree(t)
	for _, f := range files {
		for _, decl := range f.ast.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok && d.Recv == nil && d.Name.Name == "init" {
				t.Errorf("%s: no init functions: build what is needed in New", fset.Position(d.Pos()))
			}
		}
	}
}

func TestNoPackageState(t *testing.T) {
	fset, files := tree(t)
	for _, f := range files {
		if f.test {
			continue
		}
		for _, decl := range f.ast.Decls {
			d, ok := decl.(*ast.GenDecl)
			if !ok || d.Tok != token.VAR {
				continue
			}
			for _, spec := range d.Specs {
				s := spec.(*ast.ValueSpec)
				if !constant(s) && !embedded(s) {
					t.Errorf("%s: package-level variable %s: keep state in a value that New returns", fset.Position(s.Pos()), s.Names[0].Name)
				}
			}
		}
	}
}

// embedded reports whether a package-level var holds a file of the package.
func embedded(s *ast.ValueSpec) bool {
	if s.Doc == nil {
		return false
	}
	for _, comment := range s.Doc.List {
		if strings.HasPrefix(comment.Text, "//go:embed ") {
			return true
		}
	}
	return false
}

// constant reports whether a package-level var is an error, an interface assertion, or a table that is never written:
// a literal, or the result of a pure constructor of constants.
func constant(s *ast.ValueSpec) bool {
	if s.Names[0].Name == "_" {
		return true
	}
	if len(s.Values) != len(s.Names) {
		return false
	}
	for _, value := range s.Values {
		if !constantExpr(value) {
			return false
		}
	}
	return true
}

// pure lists constructors of values that are never written.
var pure = []string{
	"errors.New", "fmt.Errorf", "regexp.MustCompile", "schema.GroupResource", "sets.New", "template.Must",
	"strings.NewReplacer", "net.ParseIP", "netutils.ParseIPSloppy", "big.NewInt",
}

func constantExpr(value ast.Expr) bool {
	switch v := value.(type) {
	case *ast.CompositeLit, *ast.BasicLit, *ast.Ident, *ast.SelectorExpr, *ast.BinaryExpr:
		return true
	case *ast.UnaryExpr:
		return constantExpr(v.X)
	case *ast.CallExpr:
		name := callee(v.Fun)
		return contains(pure, name) || name == "" || name == "[]byte" || name == "string"
	}
	return false
}

// callee names the called function, "" for a conversion to an unnamed type.
func callee(fun ast.Expr) string {
	switch f := fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
		return f.Sel.Name
	case *ast.IndexExpr:
		return callee(f.X)
	case *ast.ArrayType:
		return ""
	}
	return "?"
}

// shunned calls, and what to do instead.
var shunned = map[string]string{
	"fmt.Print":   "write to an injected io.Writer or log",
	"fmt.Printf":  "write to an injected io.Writer or log",
	"fmt.Println": "write to an injected io.Writer or log",
	"time.Sleep":  "wait for what happens",
	"os.Getenv":   "read the environment in cmd",
	"os.Exit":     "return an error",
	"log.Fatal":   "return an error",
	"klog.Fatal":  "return an error",
	"klog.Fatalf": "return an error",
}

func TestShunnedCalls(t *testing.T) {
	fset, files := tree(t)
	for _, f := range files {
		if f.ast.Name.Name == "main" || f.test { // programs deal with the process
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			name := callee(call.Fun)
			if instead, bad := shunned[name]; bad {
				t.Errorf("%s: %s: %s", fset.Position(call.Pos()), name, instead)
			}
			return true
		})
	}
}

func TestFormatted(t *testing.T) {
	_, files := tree(t)
	for _, f := range files {
		want, err := format.Source(f.src)
		if err != nil {
			t.Errorf("%s: %v", f.path, err)
			continue
		}
		if !bytes.Equal(want, f.src) {
			t.Errorf("%s is not formatted: run gofmt -w", f.path)
		}
	}
}

// TestTypesAreSmall checks that no type has more than 45 methods, and no Config more than 30 fields.
func TestTypesAreSmall(t *testing.T) {
	const maxMethods, maxFields = 45, 30
	fset, files := tree(t)
	methods := make(map[string]int)
	for _, f := range files {
		if f.test {
			continue
		}
		for _, decl := range f.ast.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil {
					methods[f.pkg+"."+receiver(d)]++
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok && fields(s) > maxFields && strings.HasSuffix(s.Name.Name, "Config") {
						t.Errorf("%s: %s has %d fields, more than %d: group them", fset.Position(s.Pos()), s.Name.Name, fields(s), maxFields)
					}
				}
			}
		}
	}
	for name, n := range methods {
		if n > maxMethods {
			t.Errorf("%s has %d methods, more than %d: split it", name, n, maxMethods)
		}
	}
}

// fields counts the fields of a struct, 0 for other types.
func fields(s *ast.TypeSpec) int {
	n := 0
	if st, ok := s.Type.(*ast.StructType); ok {
		for _, f := range st.Fields.List {
			n += max(1, len(f.Names))
		}
	}
	return n
}
