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

// serverLogger returns the logger of an embedded server. When the server cannot store a
// write, it logs a panic or a fatal entry, so as not to acknowledge the write. Such an entry
// becomes an error that is passed to fatal, or is panicked with while the server starts.
func serverLogger(logger *slog.Logger, level zapcore.Level, fatal func(error)) *zap.Logger {
	hook := fatalHook{fatal}
	return zaplog.New(logger, level, zap.WithPanicHook(hook), zap.WithFatalHook(hook))
}

// fatalHook is called by a zap logger with a panic or a fatal entry.
type fatalHook struct{ fatal func(error) }

// OnWrite does not return.
func (w fatalHook) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(entry.Message)
	for _, field := range fields {
		if cause, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			err = fmt.Errorf("%s: %w", entry.Message, cause)
		}
	}
	if w.fatal == nil || starting() {
		panic(err)
	}
	w.fatal(fmt.Errorf("embedded: etcd failed: %w", err))
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
