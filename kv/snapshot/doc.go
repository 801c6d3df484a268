// Package snapshot saves the data of an etcd to a file, and makes a data directory from such a file. The format is that
// of etcdctl and etcdutl.
//
// # Guarantees
//
//   - The file contains every write that was acknowledged before [Save] was called. The member first serves a
//     linearizable read, so that it does not lag behind.
//   - A file appears under its name only when it is complete, on disk and verified. It never replaces another file.
//   - [Restore] fails if the file differs from the bytes that etcd sent. The directory
//     appears only when it is complete, and never replaces one that is not empty.
//   - Restore makes a new cluster, with a new id and, unless Bump is 0, revisions that the old cluster cannot have
//     used. A watch that resumes across the restore gets an error, so it does not silently miss changes that the backup
//     lacks.
//
// If the context ends, unfinished files and directories are removed. A killed process leaves a
// file whose name ends in ".part", or a directory whose name begins with a dot.
//
// # Goroutines
//
// None outlives the call that started it.
package snapshot
