// Package faults makes a Larder server inject faults into the requests of chosen clients, for tests of
// controllers. It has the rules, and a [Client] that sets them at a running server. It imports only the
// standard library. Package inject, below it, is the server's side.
//
// # Rules
//
// A [Rule] has a [Match], which selects requests by user agent, user, verb, resource, namespace and
// name, and one action. Skip and Times count matching requests and limit the action to some of
// them. A rule for watches also applies to those that are already open.
//
//   - Hold holds back the events of a watch. [Client.Step] lets the next ones through, [Client.Release]
//     all that are held now, and [Client.Clear] ends the rule. So a test decides the order in which events
//     of different resources arrive.
//   - Delay delays each event.
//   - End ends a watch: complete, complete after a bookmark, cut off, or with 410.
//   - Stale and StaleAt serve reads as a lagging replica would: GET, LIST and the initial
//     objects of a watch, if their resourceVersion allows that.
//   - Refuse responds with 409, 429, 500, 503 or 504 instead of serving the request.
//   - Lose serves a write and then loses its response: the connection is cut, or the response is 504.
//   - Seed draws these faults from a hash of the seed and the request, see below.
//
// # Guarantees
//
// A client sees only behavior that a cluster of several kube-apiservers could show:
//
//   - A watch delivers its events in order and loses none, unless it ends. Events of one revision are not
//     separated. While events are held or delayed, no bookmark overtakes them.
//   - A stale response is a state that existed, and is at least as new as the resourceVersion in the
//     request. A consistent read is never stale: its resourceVersion is empty. So the first list of an
//     informer that streams its lists cannot be stale, as in a real cluster.
//   - A refused request changes nothing. Statuses have kube-apiserver's form and texts. 409 is only for
//     update and patch, 504 not for watches.
//
// Stale responses reach as far back as the cache's log: 90 seconds, and at least the last 128 changes.
// Requests within the server's process get no faults. For watches over websockets, in CBOR, and of
// versions that a conversion webhook makes, Refuse is the only fault.
//
// # Seeds
//
// A rule with a Seed decides by a hash of the seed, client, verb, resource, namespace, name and the
// number of earlier such requests. Time does not matter, so the same requests get
// the same faults. A stale response is not older than the first such read of the resource. Events, leases
// and access reviews get no faults. [State.Injected] lists the injected faults; a failing test prints it
// with the seed.
package faults
