// Package faults makes a Larder server inject faults into the requests of chosen clients, for tests of
// controllers. It has the rules, and a [Client] that sets them at a running server. It imports only the
// standard library. Package inject, below it, is the server's side.
//
// # Rules
//
// A [Rule] has a [Match], which selects requests by user agent, user, verb, resource, namespace and
// name, and one action. Skip and Times count the matching requests and limit which of them the action
// concerns. A rule about watches also concerns those that are already open.
//
//   - Hold keeps the events of a watch back. [Client.Step] lets the next ones through, [Client.Release]
//     all that are held now, and [Client.Clear] ends the rule. So a test decides in what order the events
//     of different resources arrive.
//   - Delay keeps each event back for a time.
//   - End ends a watch: complete, complete after a bookmark, cut off, or with 410.
//   - Stale and StaleAt answer reads as a replica would that is behind: GET, LIST and the initial
//     objects of a watch, if their resourceVersion allows that.
//   - Refuse answers with 409, 429, 500, 503 or 504 instead of serving the request.
//   - Lose serves a write and then loses its answer: the connection is cut, or the answer is 504.
//   - Seed draws these faults from a hash of the seed and the request, see below.
//
// # Guarantees
//
// A client sees nothing that a cluster of several kube-apiservers could not show it:
//
//   - A watch gives its events in order and loses none, unless it ends. Events of one revision are not
//     separated. While events are held or delayed, no bookmark overtakes them.
//   - A stale answer is a state that existed, and is at least as new as the resourceVersion in the
//     request. A consistent read is never stale: its resourceVersion is empty. So the first list of an
//     informer that streams its lists cannot be stale, as in a real cluster.
//   - A refused request changes nothing. Statuses have kube-apiserver's form and texts. 409 is only for
//     update and patch, 504 not for watches.
//
// Stale answers reach as far back as the cache's log: 90 seconds, and the last 128 changes in any case.
// Requests within the server's process are never concerned. The watches of websockets, of CBOR, and of
// versions that a conversion webhook makes are only refused.
//
// # Seeds
//
// A rule with a Seed decides by a hash of the seed, client, verb, resource, namespace, name and the
// number of earlier requests with the same of these. Time has no part in it, so the same requests get
// the same faults. A stale answer is not older than the first such read of the resource. Events, leases
// and reviews of access are left alone. [State.Injected] lists what was done; a failing test prints it
// with the seed.
package faults
