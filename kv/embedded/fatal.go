package embedded

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"syscall"

	"go.uber.org/zap/zapcore"
)

// fatalHook handles the panic and fatal entries of an embedded server's log. The server logs such an entry instead of
// acknowledging a write that it cannot store. The hook passes the entry to fatal as an error, or panics with it while
// the server starts.
type fatalHook struct{ fatal func(error) }

// OnWrite does not return.
func (h fatalHook) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(entry.Message)
	for _, field := range fields {
		if cause, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			err = fmt.Errorf("%s: %w", entry.Message, cause)
		}
	}
	if errors.Is(err, syscall.ENOMEM) {
		err = fmt.Errorf("%w: the address space (ulimit -v) must have room for the whole quota", err)
	}
	if h.fatal == nil || starting() {
		panic(err)
	}
	h.fatal(fmt.Errorf("embedded: etcd failed: %w", err))
}

// starting reports whether the caller's goroutine is the one that starts a server.
func starting() bool {
	const maxFrames = 200
	callers := make([]uintptr, maxFrames)
	frames := runtime.CallersFrames(callers[:runtime.Callers(1, callers)])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, "/embedded.startEtcd") {
			return true
		}
		if !more {
			return false
		}
	}
}
