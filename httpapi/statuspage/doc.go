// Package statuspage serves a page that shows the state of the server: its resources, watches, flow
// control, clients, errors, health and memory.
//
// The page itself is HTML with style, script and icon, and has no data. It needs no authorization,
// because a browser can send a bearer token only after the page has asked for it. The data is at
// [DataPath], for users who may get that path: a [Snapshot] in JSON, or with ?watch=1 a stream of them,
// one per line.
//
// Tokens are never in a URL, and there are no cookies. Requests from other sites, to which a browser may add a client
// certificate, cannot read the responses or change anything. The page refuses to be framed, runs only its own script,
// and never inserts text as HTML.
//
// A Snapshot is gathered at most once a second. [Failures] keeps the latest responses with a code of 500 or above.
//
// # Locks
//
// All are leaves except Page.mu. While it is held, a snapshot is gathered: health checks run, and other
// packages report their state under their locks.
package statuspage
