// Package scenario reads files that describe a load of several workloads, and runs them.
//
// A file is YAML, or JSON, which is YAML too. It is read strictly: an unknown field, a value of
// the wrong kind and whatever makes no sense are errors that name the file and the line, all of
// them that can be found at once. docs/bench.md describes the fields.
//
// The workloads of a [Scenario] run at the same time, each with clients and connections of its
// own. Their measured parts begin together, but for those that begin later. Each yields
// Results of its name; the first Result is that of all, to which the server's cost belongs.
package scenario
