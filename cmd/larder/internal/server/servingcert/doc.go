// Package servingcert serves the TLS certificates of a server and reloads them from their files.
//
// New connections get what the files hold. A bad file leaves the last good one in force. TLS
// sessions are resumed across changes. [Certificates.Run] waits for the goroutines that upstream's
// controllers start in [Load].
package servingcert
