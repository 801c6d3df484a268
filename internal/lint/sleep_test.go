package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

// TestNoRealSleeps checks that tests let time pass only in a bubble of testing/synctest, where that takes no real time.
func TestNoRealSleeps(t *testing.T) {
	fset, files := tree(t)
	byPackage := make(map[string][]*ast.File)
	for _, f := range files {
		if f.test {
			byPackage[f.pkg] = append(byPackage[f.pkg], f.ast)
		}
	}
	for _, parsed := range byPackage {
		for _, at := range realSleeps(parsed) {
			t.Errorf("%s: a real sleep: wait for the event with proctest.Eventually or a channel, "+
				"or sleep in the function given to synctest.Test, or in what is used only there", fset.Position(at))
		}
	}
}

// spot is a place in test files: the name of its function, type or method, and whether it is in a function literal that
// is passed to synctest.Test.
type spot struct {
	in     string
	bubble bool
}

// sleeper records, for the test files of one package, where each name is written and where tests sleep. A name stands
// for everything of that name.
type sleeper struct {
	mentions map[string][]spot
	sleeps   map[token.Pos]spot
}

// realSleeps returns where test files of one package sleep outside bubbles. A function is within a bubble if its name
// is written only in bubbles and in functions within one. A method is within a bubble if that holds for the name of
// its type, because others may call it.
func realSleeps(files []*ast.File) []token.Pos {
	s := &sleeper{mentions: make(map[string][]spot), sleeps: make(map[token.Pos]spot)}
	for _, f := range files {
		for _, decl := range f.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					name = receiver(d)
				}
				if d.Body != nil {
					s.walk(d.Body, spot{in: name})
				}
			case *ast.GenDecl:
				s.declare(d)
			}
		}
	}
	var found []token.Pos
	within := s.within()
	for at, where := range s.sleeps {
		if !where.bubble && !within[where.in] {
			found = append(found, at)
		}
	}
	slices.Sort(found)
	return found
}

// declare walks package-level types and variables.
func (s *sleeper) declare(d *ast.GenDecl) {
	for _, spec := range d.Specs {
		switch x := spec.(type) {
		case *ast.TypeSpec:
			s.walk(x.Type, spot{in: x.Name.Name})
		case *ast.ValueSpec:
			for _, value := range x.Values {
				s.walk(value, spot{})
			}
		}
	}
}

func (s *sleeper) walk(n ast.Node, where spot) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.CallExpr:
			switch callee(x.Fun) {
			case "synctest.Test":
				for _, arg := range x.Args {
					s.walk(arg, spot{where.in, true})
				}
				return false
			case "time.Sleep":
				s.sleeps[x.Pos()] = where
			}
		case *ast.ExprStmt: // <-time.After(d) is a sleep, but not where it is one of several cases
			if receive, ok := x.X.(*ast.UnaryExpr); ok && receive.Op == token.ARROW {
				if call, ok := receive.X.(*ast.CallExpr); ok && callee(call.Fun) == "time.After" {
					s.sleeps[x.Pos()] = where
				}
			}
		case *ast.SelectStmt:
			if len(x.Body.List) > 1 {
				s.cases(x, where)
				return false
			}
		case *ast.Ident:
			s.mentions[x.Name] = append(s.mentions[x.Name], where)
		}
		return true
	})
}

// cases walks the statements of a select with several cases.
func (s *sleeper) cases(x *ast.SelectStmt, where spot) {
	for _, c := range x.Body.List {
		clause := c.(*ast.CommClause)
		if receive, ok := clause.Comm.(*ast.ExprStmt); ok {
			s.walk(receive.X, where)
		} else if clause.Comm != nil {
			s.walk(clause.Comm, where)
		}
		for _, stmt := range clause.Body {
			s.walk(stmt, where)
		}
	}
}

// within returns the names that are written only in bubbles and in functions within one.
func (s *sleeper) within() map[string]bool {
	within := make(map[string]bool)
	for name := range s.mentions {
		within[name] = true
	}
	for changed := true; changed; {
		changed = false
		for name, is := range within {
			outside := func(m spot) bool { return !m.bubble && !within[m.in] }
			if is && slices.ContainsFunc(s.mentions[name], outside) {
				within[name], changed = false, true
			}
		}
	}
	return within
}

// receiver names the type that d is a method of.
func receiver(d *ast.FuncDecl) string {
	expr := d.Recv.List[0].Type
	for {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		case *ast.Ident:
			return e.Name
		default:
			return ""
		}
	}
}

// TestRealSleepsAreFound checks that realSleeps finds the sleeps of test files with and without bubbles.
func TestRealSleepsAreFound(t *testing.T) {
	for _, c := range []struct {
		name, source string
		found        int
	}{
		{"in a test", `func TestX(t *testing.T) { time.Sleep(1) }`, 1},
		{"in a goroutine of a test", `func TestX(t *testing.T) { go func() { time.Sleep(1) }() }`, 1},
		{"by another name", `func TestX(t *testing.T) { <-time.After(1) }`, 1},
		{"in a case", `func TestX(t *testing.T) { select { case <-c: time.Sleep(1); <-time.After(1) } }`, 2},
		{"one of several cases", `func TestX(t *testing.T) { select { case <-c: case <-time.After(1): } }`, 0},
		{"in a bubble", `func TestX(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(1); go func() { <-time.After(1) }() }) }`, 0},
		{"behind a bubble", `func TestX(t *testing.T) { synctest.Test(t, func(t *testing.T) {}); time.Sleep(1) }`, 1},
		{"in a function given to a bubble", `func TestX(t *testing.T) { synctest.Test(t, x) }; func x(t *testing.T) { time.Sleep(1) }`, 0},
		{"in a helper of a bubble", `func TestX(t *testing.T) { synctest.Test(t, func(t *testing.T) { x() }) }; func x() { y() }; func y() { time.Sleep(1) }`, 0},
		{"in a helper of others too", `func TestX(t *testing.T) { synctest.Test(t, func(t *testing.T) { x() }); y() }; func x() { y() }; func y() { time.Sleep(1) }`, 1},
		{"in a helper that tests hand on", `func TestX(t *testing.T) { z(y); synctest.Test(t, func(t *testing.T) { y() }) }; func y() { time.Sleep(1) }`, 1},
		{"in what nobody calls", `func x() { time.Sleep(1) }`, 1},
		{"in a method of a type of bubbles", `type a struct{}; func (*a) F() { time.Sleep(1) }; func TestX(t *testing.T) { synctest.Test(t, func(t *testing.T) { z(&a{}) }) }`, 0},
		{"in a method of a type within one of bubbles", `type a struct{}; type b []a; func (a) F() { time.Sleep(1) }; func TestX(t *testing.T) { synctest.Test(t, func(t *testing.T) { z(b{}) }) }`, 0},
		{"in a method of a type within one of others", `type a struct{}; type b []a; func (a) F() { time.Sleep(1) }; func TestX(t *testing.T) { z(b{}) }`, 1},
		{"in the only case", `func TestX(t *testing.T) { select { case <-time.After(1): } }`, 1},
		{"in a variable", `var x = func() { time.Sleep(1) }`, 1},
		{"in a method of a type of others", `type a struct{}; func (*a) F() { time.Sleep(1) }; func TestX(t *testing.T) { z(&a{}); synctest.Test(t, func(t *testing.T) { new(a).F() }) }`, 1},
	} {
		parsed, err := parser.ParseFile(token.NewFileSet(), "x_test.go", "package x\n"+c.source, 0)
		if err != nil {
			t.Fatal(err)
		}
		if found := realSleeps([]*ast.File{parsed}); len(found) != c.found {
			t.Errorf("%s: %d are found, want %d", c.name, len(found), c.found)
		}
	}
}
