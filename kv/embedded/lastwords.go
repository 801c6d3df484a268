package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/larder-io/larder/kv/internal/zaplog"
)

// serverLogger is for an embedded server, which logs its last words when it cannot go
// on: that is how it refuses to acknowledge a write that it could not store. They are
// not logged but given to die, or panicked with while the server is being started.
func serverLogger(logger *slog.Logger, level zapcore.Level, die func(error)) *zap.Logger {
	hook := lastWords{die}
	return zaplog.New(logger, level, zap.WithPanicHook(hook), zap.WithFatalHook(hook))
}

// lastWords is what a zap logger does after an entry that says that it is the last.
type lastWords struct{ die func(error) }

// OnWrite does not return.
func (w lastWords) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(entry.Message)
	for _, field := range fields {
		if cause, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			err = fmt.Errorf("%s: %w", entry.Message, cause)
		}
	}
	if w.die == nil || starting() {
		panic(err)
	}
	w.die(fmt.Errorf("embedded: etcd failed: %w", err))
}

// starting reports whether the caller's goroutine is the one that starts a server.
func starting() bool {
	const most = 200
	callers := make([]uintptr, most)
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
