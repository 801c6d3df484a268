package server

import (
	"context"
	"log/slog"
	"slices"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/kv"
)

// newLogger hands what the store has to say to the process's log.
func newLogger() *slog.Logger {
	return slog.New(storeLog{Handler: logr.ToSlogHandler(klog.Background())})
}

// storeLog keeps etcd's own warnings, most of which tell how busy it is, for
// those who asked for a verbose log. Who logs is told by the attribute that kv gives
// etcd's logger, not by what is logged.
type storeLog struct {
	slog.Handler
	etcd bool // it is etcd's
}

const storeVerbosity = 2

// Handle implements slog.Handler.
func (l storeLog) Handle(ctx context.Context, r slog.Record) error {
	if l.etcd && r.Level < slog.LevelError && !klog.V(storeVerbosity).Enabled() {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l storeLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	etcd := slices.ContainsFunc(attrs, func(a slog.Attr) bool { return a.Key == kv.LoggerKey && a.Value.String() == kv.EtcdLogger })
	return storeLog{l.Handler.WithAttrs(attrs), l.etcd || etcd}
}

// WithGroup implements slog.Handler.
func (l storeLog) WithGroup(name string) slog.Handler {
	return storeLog{l.Handler.WithGroup(name), l.etcd}
}
