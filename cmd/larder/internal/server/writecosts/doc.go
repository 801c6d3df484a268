// Package writecosts counts the work of a server for each kind of write: goroutines, encodes, decodes and deep
// copies. It has only tests.
package writecosts
