// Package scenario reads files that describe a load of several workloads, and runs them.
//
// A file is YAML or JSON. An unknown field, a value of the wrong type and a setting that makes no
// sense are errors with the file and the line; all of them are reported at once. docs/bench.md
// describes the fields.
//
// The workloads of a [Scenario] run at the same time, each with its own clients and connections.
// Their measured parts begin together, except those with a startAfter. Each workload returns
// Results of its name. The first Result is that of all workloads and has the cost of the server.
package scenario
