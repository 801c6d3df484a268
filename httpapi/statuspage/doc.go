// Package statuspage serves a page that shows how the server is: its resources, watches, flow
// control, clients, errors, health and memory.
//
// The page has two parts. The shell is fixed HTML with its style, script and icon in it, which holds no
// data and asks nobody else: it is served to everybody, because a browser can send a
// bearer token only once the page is there to ask for it. The data is at [DataPath], and whoever
// asks for it must be allowed to get that path. With ?watch=1 it comes as a stream of lines, each of them
// a [Snapshot] in JSON.
//
// Tokens never are in a URL, and there are no cookies. A browser may add a client certificate to
// what other sites send: they cannot read the answers, and nothing here changes anything. The page is not shown in frames, runs no script but its own, and makes no HTML
// out of text: what clients call themselves is shown as text.
//
// A Snapshot is gathered once a second at most, however many look. A [Failures] remembers the
// last answers that were the server's fault.
//
// # Locks
//
// All are leaves, but for the one that a snapshot is gathered under: health checks, and the
// ledger's, run while it is held.
package statuspage
