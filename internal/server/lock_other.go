//go:build !unix

package server

import "os"

// lockFile relies on the lock that the embedded store takes on its own files.
func lockFile(*os.File) error { return nil }
