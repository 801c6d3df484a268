package auth_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/server/options"

	"github.com/larder-io/larder/internal/auth"
)

// auditTo returns options that record everything in a file, and the path of that file.
func auditTo(t *testing.T) (*options.AuditOptions, string) {
	t.Helper()
	dir := t.TempDir()
	o := options.NewAuditOptions()
	o.PolicyFile = filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(o.PolicyFile, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.LogOptions.Path = filepath.Join(dir, "audit.log")
	o.LogOptions.MaxSize = 0 // no rotation, because its goroutine never ends
	return o, o.LogOptions.Path
}

// TestBatchesAreWrittenBeforeRunReturns checks that Run flushes batched events before it returns.
func TestBatchesAreWrittenBeforeRunReturns(t *testing.T) {
	for _, mode := range options.AllowedModes {
		o, file := auditTo(t)
		o.LogOptions.BatchOptions.Mode = mode
		a, err := auth.LoadAudit(o, nil)
		if err != nil {
			t.Fatal(err)
		}
		const records = 100
		for i := range records {
			event := &auditapi.Event{AuditID: types.UID(fmt.Sprint("id-", i)), Level: auditapi.LevelMetadata, StageTimestamp: metav1.NowMicro()}
			if !a.Backend.ProcessEvents(event) {
				t.Errorf("%s: record %d was rejected", mode, i)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.Run(ctx); err != nil {
			t.Fatal(err)
		}
		written, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(string(written), `"auditID":"id-`); got != records {
			t.Errorf("%s: %d records were written, want %d", mode, got, records)
		}
	}
}

// TestAuditNeedsPolicyAndBackend checks that nothing is audited without a policy or without a backend, and that
// unreadable files are errors.
func TestAuditNeedsPolicyAndBackend(t *testing.T) {
	change := func(change func(*options.AuditOptions)) (*auth.Audit, error) {
		o, _ := auditTo(t)
		change(o)
		return auth.LoadAudit(o, nil)
	}
	for name, with := range map[string]func(*options.AuditOptions){
		"no policy": func(o *options.AuditOptions) { o.PolicyFile = "" },
		"no place":  func(o *options.AuditOptions) { o.LogOptions.Path = "" },
	} {
		if a, err := change(with); a != nil || err != nil {
			t.Errorf("%s: got %v, error %v; want no Audit and no error", name, a, err)
		}
	}
	if a, err := auth.LoadAudit(nil, nil); a != nil || err != nil {
		t.Errorf("without audit options: %v, %v", a, err)
	}
	for name, with := range map[string]func(*options.AuditOptions){
		"policy":  func(o *options.AuditOptions) { o.PolicyFile += ".not" },
		"webhook": func(o *options.AuditOptions) { o.WebhookOptions.ConfigFile = "/none" },
	} {
		if a, err := change(with); a != nil || err == nil || !strings.HasPrefix(err.Error(), "auth: audit: ") {
			t.Errorf("%s: got %v, error %v; want an error", name, a, err)
		}
	}
}
