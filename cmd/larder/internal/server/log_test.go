package server

import (
	"context"
	"log/slog"
	"testing"
)

// kept collects messages.
type kept struct{ messages *[]string }

func (kept) Enabled(context.Context, slog.Level) bool { return true }

func (k kept) Handle(_ context.Context, r slog.Record) error {
	*k.messages = append(*k.messages, r.Message)
	return nil
}

func (k kept) WithAttrs([]slog.Attr) slog.Handler { return k }
func (k kept) WithGroup(string) slog.Handler      { return k }

// TestEtcdWarningsAreLoggedVerbosely checks that etcd's own warnings are logged only verbosely. Warnings of other code
// are always logged, even if their text begins like etcd's.
func TestEtcdWarningsAreLoggedVerbosely(t *testing.T) {
	var messages []string
	all := slog.New(storeLog{Handler: kept{&messages}})
	etcd := all.With("logger", "etcd")
	etcd.Warn("apply request took too long")
	etcd.With("member", "a").Warn("slow fdatasync")
	all.Warn("etcd: from a client")
	all.With("logger", "other").Warn("from another")
	etcd.Error("broken")
	if want := []string{"etcd: from a client", "from another", "broken"}; len(messages) != len(want) || messages[0] != want[0] || messages[1] != want[1] || messages[2] != want[2] {
		t.Errorf("logged %q, want %q", messages, want)
	}
}
