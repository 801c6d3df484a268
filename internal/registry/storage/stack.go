package storage

import "runtime"

// stackOfWrite is how much of a goroutine's stack nearly all writes need.
const stackOfWrite = 12 << 10

// ReserveStack grows the goroutine's stack to what a write needs, at once. The stack of a new goroutine,
// such as that of an HTTP/2 request, would otherwise grow several times where the calls are deepest,
// and each growth copies all of it. If the stack is large enough, ReserveStack costs nothing.
//
//go:noinline
func ReserveStack() {
	var room [stackOfWrite]byte
	runtime.KeepAlive(&room)
}
