// Package lint turns the project's taste into tests.
//
// It holds no code of its own. Its tests read every Go file of the module and
// check nine rules: the import graph, one package doc per package, which
// ARCHITECTURE.md names, a doc on every exported name, sizes of files and
// functions, no init functions, no package-level state, no sleeping (in tests
// neither) and printing, and gofmt. A failure names the file and what to write
// instead.
package lint
