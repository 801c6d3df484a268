// Package streams serves requests that have a connection to themselves: watches, and requests
// of net/http handlers that run without a time limit or take the connection over.
//
// # Watches
//
// [Streams.Watch] opens a watch and takes its connection. A watch has a goroutine while it
// sends its head and its initial objects. When nothing is left to send it is parked: it has
// neither goroutine nor buffers until there is something to send, and then it gets a turn on
// one of the few goroutines that all watches share. Watches whose streams share a connection
// have their turns one after the other, up to a number, and what they send leaves together. When a write has to wait for its client,
// another goroutine may start, so that a slow client costs the others nothing. A frame is
// built once per event, type and encoding, unless it only puts a head before canonical bytes.
//
// When the server ends, a watch whose client allows bookmarks ends with one, so that the client
// can go on from the present wherever it connects next.
//
// # Rights
//
// A stream may depend on a [Right]. When the right is lost, the stream ends like a complete
// one; a client that does not read that end is cut off.
//
// # Goroutines
//
// [Streams.Wait] returns after the last of the goroutines that Watch and Serve started. Sweep
// and EndRevoked run on the goroutines of their callers.
//
// # Locks
//
// Package watch wakes a watch while it holds its own locks; that takes the lock of the queue.
// All others are leaves: none is held while another is taken or while anything is written.
package streams
