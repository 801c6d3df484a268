// Package table prints objects as tables, as kubectl get shows them.
//
// # Model
//
// A [Printer] belongs to one version of a resource and runs the printer of upstream's REST storage.
// [Printer.Rows] caches the row of each object as bytes without ages. It fills in the ages when it writes
// the row (cachedrow.go). [Printer.Table] decodes and prints every object, for rows that cannot be cached.
//
// Upstream's printers read the clock to print ages. ages.go declares the columns with ages, and the times at which the
// ages start (E10). If a start is ambiguous, the row is printed for each reader.
//
// # Guarantees
//
// Rows writes exactly the JSON of the table that Table returns at the same time.
//
// # Locks and goroutines
//
// There are none. A Printer is immutable and may be shared; a [Rows] belongs to one caller.
package table
