// Package lint turns the project's taste into tests.
//
// It holds no code of its own. Its tests read every Go file and every document of the module
// and check these rules: the import graph, one package doc per package, which ARCHITECTURE.md
// names, a doc on every exported name, sizes of files and functions, no init functions, no
// package-level state, no sleeping (in tests neither) and printing, gofmt, that each feature gate
// of kube-apiserver is read, that documents quote figures as BENCHMARKS.md has them, and that the
// files, tests and rows that they name exist. A failure names the file and what to write instead.
package lint
