package server

import (
	"context"
	"log/slog"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// newLogger hands what the store has to say to the process's log.
func newLogger() *slog.Logger {
	return slog.New(storeLog{logr.ToSlogHandler(klog.Background())})
}

// storeLog keeps etcd's own warnings, most of which tell how busy it is, for
// those who asked for a verbose log.
type storeLog struct{ slog.Handler }

const storeVerbosity = 2

// Handle implements slog.Handler.
func (l storeLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelError && strings.HasPrefix(r.Message, "etcd: ") && !klog.V(storeVerbosity).Enabled() {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l storeLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return storeLog{l.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (l storeLog) WithGroup(name string) slog.Handler { return storeLog{l.Handler.WithGroup(name)} }
