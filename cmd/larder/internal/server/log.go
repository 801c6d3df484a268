package server

import (
	"context"
	"log/slog"
	"slices"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/kv"
)

// newLogger returns a logger that writes to klog.
func newLogger() *slog.Logger {
	return slog.New(storeLog{Handler: logr.ToSlogHandler(klog.Background())})
}

// storeLog drops etcd's own warnings unless the log is verbose: most of them only say that etcd is busy.
// It recognises etcd's lines by the attribute that kv gives to etcd's logger.
type storeLog struct {
	slog.Handler
	etcd bool // whether this is etcd's logger
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
