package socket

import "syscall"

// readiness waits until there is something to read on a socket. It belongs to the
// goroutine that reads.
type readiness struct {
	raw    syscall.RawConn
	try    func(fd uintptr) bool // is look
	looked bool
}

// wait returns when there are bytes, or the end, or the read deadline has passed.
func (r *readiness) wait(c syscall.Conn) error {
	if r.raw == nil {
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}
		r.raw, r.try = raw, r.look
	}
	r.looked = false
	return r.raw.Read(r.try)
}

// look reports whether there is something, or there was nothing the last time: then
// the kernel has said meanwhile that there is.
func (r *readiness) look(fd uintptr) bool {
	if r.looked {
		return true
	}
	r.looked = true
	return peekAt(fd) != peekNothing
}
