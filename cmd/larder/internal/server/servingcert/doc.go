// Package servingcert serves the TLS certificates of a server and reloads them from their files.
//
// New connections get the certificates in the files. If a file becomes invalid, the last valid content
// stays in force. TLS sessions can be resumed across changes. [Certificates.Run] waits for the goroutines
// that upstream's controllers start in [Load].
package servingcert
