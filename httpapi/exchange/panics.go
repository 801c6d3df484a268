package exchange

import (
	"errors"
	"net/http"
	"runtime/debug"
)

// IsAbort reports whether p, which a handler panicked with, asks to close the connection
// without an answer.
func IsAbort(p any) bool {
	err, ok := p.(error)
	return ok && errors.Is(err, http.ErrAbortHandler)
}

// Stack is the stack of the caller, for the log.
func Stack() string { return string(debug.Stack()) }
