// Package servingcert serves the TLS certificates of a server and reloads them from their files.
//
// New connections get the certificates in the files. If a file becomes invalid, the last valid content
// remains in use. Clients can resume TLS sessions across changes. [Certificates.Run] waits for the goroutines
// that upstream's controllers start in [Load].
package servingcert
