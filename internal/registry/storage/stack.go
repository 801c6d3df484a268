package storage

import "runtime"

// stackOfWrite is a stack size that suffices for nearly all writes.
const stackOfWrite = 12 << 10

// ReserveStack grows the goroutine's stack to the size that a write needs. Otherwise the stack of a new goroutine would
// grow several times, and be copied each time.
//
//go:noinline
func ReserveStack() {
	var room [stackOfWrite]byte
	runtime.KeepAlive(&room)
}
