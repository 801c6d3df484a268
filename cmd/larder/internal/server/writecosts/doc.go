// Package writecosts counts what each kind of write makes a server do: goroutines, encodes, decodes
// and deep copies. It has only tests.
package writecosts
