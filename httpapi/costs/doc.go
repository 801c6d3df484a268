// Package costs says who costs what: the CPU time, the bytes, the requests and the events of
// watches, by user, user agent, resource and verb.
//
// A [Ledger] has an [Account] for each combination of these that asked for something in the
// last seconds. Requests add to it. Every few seconds, and whenever somebody asks, the ledger
// takes what the accounts have and adds it to summaries of the current ten seconds, the current
// minute, and all the time since the start. A [Report] is read from the summaries of its
// window.
//
// # What the numbers mean
//
// Requests, bytes and events are counted, none is sampled. A request counts when its answer has
// been written, or when its watch has been opened. Bytes are those of answers: their heads and
// bodies, as HTTP/1.1 writes them, before TLS, without the frames of HTTP/2 and the framing of
// a watch's chunks. Events are the frames that watches are sent, bookmarks among them.
//
// CPU time is measured by the clock: it is the time from the end of a request's header to the
// end of its answer, and that of each turn in which a watch is written to, less the time that
// was spent waiting: for a place among the requests that are served, for the store, for
// webhooks, for the body of the request, for a client that does not read. A thread's own CPU
// time cannot be read instead: it costs two system calls, and goroutines change threads. So
// the number includes moments in which the goroutine could have gone on and no processor was
// free, or in which it waited for a lock. In sum the ledger gives out no more than the process
// has used in the meantime, which the kernel counts: when more was measured, all that was
// measured since the last time is reduced in proportion. What is done for nobody in particular
// (garbage collection, reading and decrypting headers, following the store, finding the
// watches that an event concerns) is in the process's time and in nobody's account. An
// encoding that many share is made on the account of the first who needs it.
//
// # Bounds
//
// Memory is bounded, whatever clients send: names are cut to a length, there are [mostAccounts]
// accounts at most, and a summary has [mostEntries] entries at most. When there are more, those
// with the least are dropped, as Misra and Gries do it (Finding repeated elements, 1982), for
// each kind of cost: what a name may have been charged while it was not in a summary is at most
// one part in 101 of the summary's total, every name that has been charged more than that is in
// it, and a Report says for each of its rows how much is missing at most. That is nothing as
// long as there are fewer than mostEntries names.
//
// # Locks
//
// A Ledger's lock guards all of it but its accounts' counters. Finding an account and adding to
// it takes no lock, except for the first request of its kind in a while, which adds an
// account. No other lock is taken while the lock is held.
package costs
