// Package snapshot saves the data of an etcd to a file, and makes a data directory from such a file.
// The file format is etcd's own: etcdctl and etcdutl write and read it, too.
//
// # Guarantees
//
//   - The file holds every write that was acknowledged before [Save] was called. The member that
//     gives the snapshot first answers a linearizable read, so that it does not lag behind.
//   - A file appears under its name when it is complete, on disk, and read back without an
//     error; not before, and never in the place of another file.
//   - [Restore] fails at a file that is not, byte for byte, what etcd sent. The directory
//     appears when it is complete, and never in the place of one that holds anything.
//   - What is restored is another cluster: it has an id of its own, and unless the caller
//     wants it otherwise, revisions that the cluster before it cannot have used. A watch that
//     resumes across the restore gets an error, instead of missing what the backup lacks.
//
// If the context ends, unfinished files and directories are removed. A process that is killed leaves a
// file whose name ends in ".part", or a directory whose name begins with a dot.
//
// # Goroutines
//
// None outlives the call that started it.
package snapshot
