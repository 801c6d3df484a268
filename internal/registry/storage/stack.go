package storage

import "runtime"

// stackOfWrite is what a write takes of a goroutine's stack, but for rare ones.
const stackOfWrite = 12 << 10

// ReserveStack makes the goroutine's stack large enough for a write, at once. Upstream's
// handlers run each write on a goroutine of its own, whose stack would grow several times
// where the calls are deepest, and growing copies all of it. It may be called by whoever
// is about to call such code and costs nothing if there is room.
//
//go:noinline
func ReserveStack() {
	var room [stackOfWrite]byte
	runtime.KeepAlive(&room)
}
