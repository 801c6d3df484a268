// Package streams serves what has a connection to itself: watches, and requests that a
// net/http handler serves for as long as it likes or takes the connection over for.
//
// # Watches
//
// [Streams.Watch] opens a watch and takes its connection. A watch has a goroutine while it
// sends its head and its initial objects. When nothing is left to tell it is parked: it has
// neither goroutine nor buffers until there is something to tell, and then a turn on one of
// the few goroutines that all watches share. A write that has to wait for its client makes
// room for another goroutine, so that a slow client costs the others nothing. Frames are
// built once per event, type and encoding, but for those that only put a head before
// canonical bytes.
//
// # Rights
//
// A stream may rest on a [Right]. When it is lost, the stream ends as one that is complete;
// who does not take that in is cut off.
//
// # Goroutines
//
// [Streams.Wait] returns after the last of all that Watch and Serve began. Sweep and
// EndRevoked run on the goroutines of their callers.
//
// # Locks
//
// A watch is woken under the locks of package watch, which takes the queue's. All others are
// leaves: none is held while another is taken or while anything is written.
package streams
