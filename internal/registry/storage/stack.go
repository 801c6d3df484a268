package storage

import "runtime"

// stackOfWrite is how much of a goroutine's stack nearly all writes need.
const stackOfWrite = 12 << 10

// ReserveStack makes the goroutine's stack large enough for a write, at once. Upstream's
// handlers run each write on a goroutine of its own, whose stack would grow several times
// where the calls are deepest, and each growth copies all of it. It costs nothing if the
// stack is large enough.
//
//go:noinline
func ReserveStack() {
	var room [stackOfWrite]byte
	runtime.KeepAlive(&room)
}
