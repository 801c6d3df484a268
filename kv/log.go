package kv

import (
	"context"
	"log/slog"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapLogger returns a logger for etcd that passes on entries of a level and above.
// A fatal entry still ends the process, which is how etcd refuses to acknowledge a
// write that it could not store.
func zapLogger(logger *slog.Logger, level zapcore.Level) *zap.Logger {
	return zap.New(slogCore{Level: level, logger: logger})
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
	if c.Enabled(entry.Level) && !ordinary[entry.Message] {
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
