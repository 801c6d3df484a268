//go:build !unix

package datadir

import "os"

// lockFile relies on the lock that the embedded store takes on its own files.
func lockFile(*os.File) error { return nil }

// mine is false: without locks nobody can tell whose process has ended.
func mine(os.FileInfo) bool { return false }
