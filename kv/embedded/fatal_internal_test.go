package embedded

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// TestErrorNamesTheLimitOfAddressSpace checks the error of a process whose address space is too small for the database.
func TestErrorNamesTheLimitOfAddressSpace(t *testing.T) {
	for cause, want := range map[error]bool{syscall.ENOMEM: true, syscall.ENOSPC: false} {
		var got error
		hook := fatalHook{func(err error) { got = err }}
		hook.OnWrite(&zapcore.CheckedEntry{Entry: zapcore.Entry{Message: "failed to open database"}}, []zapcore.Field{zap.Error(fmt.Errorf("mmap: %w", cause))})
		if got == nil || strings.Contains(got.Error(), "ulimit -v") != want {
			t.Errorf("cause %v: got error %v, want one that names ulimit -v: %v", cause, got, want)
		}
	}
}
