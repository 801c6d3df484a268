package exchange

import (
	"errors"
	"net/http"
	"runtime/debug"
)

// IsAbort reports whether p asks to cut the connection without a word.
func IsAbort(p any) bool {
	err, ok := p.(error)
	return ok && errors.Is(err, http.ErrAbortHandler)
}

// Stack is the stack of the caller, for the log.
func Stack() string { return string(debug.Stack()) }
