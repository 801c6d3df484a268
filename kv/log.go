package kv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// LoggerKey is the attribute by which etcd's own entries in a log can be told from this
// package's, EtcdLogger its value.
const (
	LoggerKey  = "logger"
	EtcdLogger = "etcd"
)

// zapLogger returns a logger for etcd that passes on entries of a level and above.
func zapLogger(logger *slog.Logger, level zapcore.Level, options ...zap.Option) *zap.Logger {
	return zap.New(slogCore{Level: level, logger: logger.With(LoggerKey, EtcdLogger)}, options...)
}

// serverLogger is for an embedded server, which logs its last words when it cannot go
// on: that is how it refuses to acknowledge a write that it could not store. They are
// not logged but given to die, or panicked with while the server is being started.
func serverLogger(logger *slog.Logger, level zapcore.Level, die func(error)) *zap.Logger {
	hook := lastWords{die}
	return zapLogger(logger, level, zap.WithPanicHook(hook), zap.WithFatalHook(hook))
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
	w.die(fmt.Errorf("kv: embedded etcd failed: %w", err))
}

// starting reports whether the caller's goroutine is the one that starts a server.
func starting() bool {
	const most = 200
	callers := make([]uintptr, most)
	frames := runtime.CallersFrames(callers[:runtime.Callers(1, callers)])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, "/kv.startEtcd") {
			return true
		}
		if !more {
			return false
		}
	}
}

// slogCore is a zapcore.Core over a slog.Logger.
type slogCore struct {
	zapcore.Level // passed on from here up
	logger        *slog.Logger
}

func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{Level: c.Level, logger: c.logger.With(attributes(fields)...)}
}

func (c slogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) && entry.Level < zapcore.DPanicLevel && !ordinary[entry.Message] && !foretells(entry.Message) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// ordinary lists what etcd warns of and what is as it should be here: its one
// socket admits this user alone, its first start has no storage version to find
// yet, and its listeners are closed when it is stopped.
var ordinary = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.": true,
	"simple token is not cryptographically signed":                                         true,
	"Failed to detect schema version":                                                      true,
	"failed to update storage version":                                                     true,
	"setting up serving from embedded etcd failed.":                                        true,
	"stopping insecure grpc server due to error":                                           true,
	"stopped insecure grpc server due to error":                                            true,
}

// foretells reports whether an entry, one of the database's, is followed by the last.
func foretells(message string) bool {
	return strings.HasPrefix(message, "writeAt failed, ") || strings.HasPrefix(message, "writing data failed: ") ||
		strings.HasPrefix(message, "Committing transaction failed: ")
}

func (c slogCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelWarn
	if entry.Level >= zapcore.ErrorLevel {
		level = slog.LevelError
	}
	c.logger.Log(context.Background(), level, "etcd: "+entry.Message, attributes(fields)...)
	return nil
}

func (slogCore) Sync() error { return nil }

// attributes converts zap's fields to slog's arguments.
func attributes(fields []zapcore.Field) []any {
	encoder := zapcore.NewMapObjectEncoder()
	args := make([]any, 0, 2*len(fields))
	for _, field := range fields {
		field.AddTo(encoder)
		value := encoder.Fields[field.Key]
		if d, ok := value.(time.Duration); ok {
			value = d.String()
		}
		args = append(args, field.Key, value)
	}
	return args
}
