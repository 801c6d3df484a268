// Package costs says who costs what: the CPU time, the bytes, the requests and the events of
// watches, by user, user agent, resource and verb.
//
// A [Ledger] has an [Account] for each combination of these that asked for something in the
// last seconds. Requests add to it. Every few seconds, and for each [Report], the ledger
// takes what the accounts have and adds it to summaries of the current ten seconds, the current
// minute, and all the time since the start. A Report is read from the summaries of its
// window.
//
// # What the numbers mean
//
// Requests, bytes and events are counted, none is sampled. A request counts when its answer has
// been written, or when its watch has been opened. Bytes are those of answers: their headers and
// bodies, as HTTP/1.1 writes them, before TLS, without the frames of HTTP/2 and the framing of
// a watch's chunks. Events are the frames that watches are sent, with bookmarks.
//
// CPU time is measured by the clock: from the end of a request's header to the end of its answer,
// and for each turn in which a watch is written to. Time in which the request waited does not
// count: for a seat, for the store, for webhooks, for its body, or for a client that does not
// read. Reading a thread's CPU time instead would cost two system calls, and goroutines change
// threads. So the number includes moments in which no processor was free, or in which the
// goroutine waited for a lock. In sum, the ledger gives out no more than the process has used by
// the kernel's count: if more was measured, it reduces everything since the last sweep in
// proportion. Work that is done for no client (garbage collection, reading and decrypting
// headers, following the store, finding the watches that an event concerns) is in the process's
// time and in no account. An encoding that many share is charged to the first that needs it.
//
// # Limits
//
// Memory is bounded, whatever clients send: names are cut to a length, and there are at most
// [mostAccounts] accounts and [mostEntries] rows of a summary. If there are more, the smallest
// are dropped, as Misra and Gries do it (Finding repeated elements, 1982), for each kind of cost.
// A name may have been charged at most one part in 101 of the summary's total while it was not
// in a summary. Every name that has been charged more has a row, and a Report says for each row
// how much is missing at most. That is nothing while there are fewer than mostEntries names.
//
// # Locks
//
// Ledger.mu > Ledger.lookup. Finding an account takes lookup for reading. Adding to it takes no
// lock, unless a sweep has removed the account meanwhile. No other lock is taken while they are held.
package costs
