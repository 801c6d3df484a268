// Package lint checks the style and the structure of the module. It has only tests, which read every Go
// file and every document:
//
//   - the import graph
//   - one package doc for each package, which ARCHITECTURE.md names, and a doc on every exported name
//   - sizes of files and functions
//   - no init functions, no package-level state, no printing, and no sleeping, in tests either
//   - gofmt
//   - each feature gate of kube-apiserver is read
//   - documents quote figures as BENCHMARKS.md has them, and the files, tests and rows that they name exist
//
// A failure names the file and what to write instead.
package lint
