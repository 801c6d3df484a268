// Package zaplog passes etcd's log to slog.
//
// It omits warnings about intended behavior. Package embedded handles fatal entries.
package zaplog

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Key is the attribute of etcd's own log entries, Etcd its value.
const (
	Key  = "logger"
	Etcd = "etcd"
)

// New returns a logger for etcd that passes on entries of a level and above.
func New(logger *slog.Logger, level zapcore.Level, options ...zap.Option) *zap.Logger {
	return zap.New(slogCore{Level: level, logger: logger.With(Key, Etcd)}, options...)
}

// slogCore is a zapcore.Core over a slog.Logger.
type slogCore struct {
	zapcore.Level // lowest level that is passed on
	logger        *slog.Logger
}

func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{Level: c.Level, logger: c.logger.With(attributes(fields)...)}
}

func (c slogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) && entry.Level < zapcore.DPanicLevel && !expected[entry.Message] && !precedesFatal(entry.Message) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// expected lists warnings about intended behavior: etcd's one socket is open to this user alone, there is no storage
// version at a first start, and stopping closes listeners.
var expected = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.": true,
	"simple token is not cryptographically signed":                                         true,
	"Failed to detect schema version":                                                      true,
	"failed to update storage version":                                                     true,
	"setting up serving from embedded etcd failed.":                                        true,
	"stopping insecure grpc server due to error":                                           true,
	"stopped insecure grpc server due to error":                                            true,
}

// precedesFatal reports whether the database logs an entry right before it panics with the same message.
func precedesFatal(message string) bool {
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
