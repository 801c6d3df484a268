//go:build !unix

package datadir

import "os"

// lockFile relies on the lock that the embedded store takes on its own files.
func lockFile(*os.File) error { return nil }

// ownedByUser returns false, so that no directory is removed: without locks it is unknown
// whether its process has ended.
func ownedByUser(os.FileInfo) bool { return false }

// adopt leaves everything as it is.
func adopt(string, string) error { return nil }

// inspect refuses nothing: owners and permissions are not those of unix.
func inspect(string, int) error { return nil }

// ownerOf returns this process's user.
func ownerOf(os.FileInfo) int { return os.Geteuid() }
