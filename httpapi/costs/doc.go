// Package costs measures the cost of each client to the server: CPU time, bytes, requests and watch
// events, by user, user agent, resource and verb.
//
// A [Ledger] has an [Account] for each combination of these that was used in the last seconds.
// Requests add to their accounts. The ledger moves the accounts' costs to its summaries every few seconds, and
// for each [Report]. It has summaries of the current ten seconds, of the current minute, and of all
// time since the start. A Report adds the summaries of its window.
//
// # What the numbers mean
//
// Requests, bytes and events are counted, not sampled. A request counts when its response has been written, or when its
// watch has been opened. Bytes are the headers and bodies of responses as HTTP/1.1 writes them, before TLS, without the
// frames of HTTP/2 and the chunk framing of watches. Events are the frames that watches send, including bookmarks.
//
// CPU time is elapsed time: from the end of a request's header to the end of its response, and while the server writes
// to a watch. Waits are subtracted: for a seat, the store, webhooks, the request's body, or a client that does not
// read. Reading the thread's CPU time instead would cost two system calls, and goroutines change threads. So the number
// includes time in which the goroutine waited for a processor or a lock. The sum of all accounts is never more than the
// CPU time of the process: if more was measured, the ledger scales down everything since the last sweep. Work that no
// client causes directly is in no account: garbage collection, reading and decrypting headers, following the store,
// matching events with watches. A shared encoding is charged to the first request that needs it.
//
// # Limits
//
// Memory is bounded regardless of what clients send: names have a maximum length, and there are at most
// [maxAccounts] accounts and [maxEntries] rows of a summary. Above that, the smallest rows are
// dropped for each kind of cost, by the algorithm of Misra and Gries (Finding repeated elements,
// 1982). A row without an entry may have caused at most one part in 101 of the summary's total;
// every larger one has an entry. A Report has the maximum that may be missing from each row, which
// is 0 while there are fewer than maxEntries names.
//
// # Locks
//
// Ledger.mu > Ledger.lookup. Finding an account takes lookup for reading. Adding to it takes no
// lock, unless a sweep has removed the account meanwhile. No other lock is taken while they are held.
package costs
