// Package table prints objects as tables, as kubectl get shows them.
//
// # Model
//
// A [Printer] belongs to one version of a resource and runs the printer of upstream's
// REST storage. [Printer.Rows] is the fast way: what a printer says of an object is kept
// with the object as bytes, but for ages, whose texts are filled in when the row is
// written (kept.go). [Printer.Table] decodes and prints every object anew; it serves what
// has no kept rows.
//
// A printer knows nothing of the cache and reads the clock. For which columns it does, and
// what the ages there are counted from, is declared (ages.go, E10). A row with an age that
// may be counted from more than one time is printed for each reader.
//
// # Guarantees
//
// What Rows writes is byte for byte the JSON of what Table returns at the same moment.
//
// # Locks and goroutines
//
// None. A Printer is immutable and may be shared; a [Rows] belongs to one caller.
package table
