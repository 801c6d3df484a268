// Package table prints objects as tables, as kubectl get shows them.
//
// # Model
//
// A [Printer] belongs to one version of a resource and runs the printer of upstream's
// REST storage. [Printer.Rows] is the fast way: the row of an object is kept with the object
// as bytes, without ages, whose texts are filled in when the row is written (kept.go).
// [Printer.Table] decodes and prints every object anew, where rows cannot be kept.
//
// Upstream's printers read the clock. In which columns they do, and since when the ages
// there count, is declared (ages.go, E10). A row with an age that may count since more than
// one time is printed for each reader.
//
// # Guarantees
//
// What Rows writes is byte for byte the JSON of what Table returns at the same moment.
//
// # Locks and goroutines
//
// There are none. A Printer is immutable and may be shared; a [Rows] belongs to one caller.
package table
