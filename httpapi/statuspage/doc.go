// Package statuspage serves a page that shows how the server is: its resources, watches, flow
// control, clients, errors, health and memory.
//
// The shell is HTML with its style, script and icon, and without data. Everybody may get it, because a
// browser can send a bearer token only after the page has asked for it. The data is at [DataPath], for
// users who may get that path: a [Snapshot] in JSON, or with ?watch=1 a stream of them, one per line.
//
// Tokens are never in a URL, and there are no cookies. Requests of other sites, to which a browser may
// add a client certificate, cannot read the answers or change anything. The page is not shown in frames,
// runs only its own script, and never makes HTML of text.
//
// A Snapshot is gathered at most once a second. [Failures] keeps the latest answers with a code of 500
// or above.
//
// # Locks
//
// All are leaves, except that health checks run, and the ledger's lock is taken, while a snapshot is
// gathered under Page.mu.
package statuspage
