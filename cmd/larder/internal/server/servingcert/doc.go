// Package servingcert serves the certificates that a server shows, and follows the files
// that hold them.
//
// New connections get what the files hold; a bad file leaves the last good one. Sessions are
// resumed whatever has changed. [Certificates.Run] waits for all goroutines, which upstream's
// controllers have from their construction on.
package servingcert
