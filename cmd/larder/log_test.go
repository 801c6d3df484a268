package main

import (
	"bytes"
	goflag "flag"
	"fmt"
	"io"
	"strings"
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
)

// captured runs log with klog as the process configures it, and returns the output that is not filtered.
func captured(t *testing.T, log func()) string {
	t.Helper()
	restore := klog.CaptureState()
	defer restore.Restore()
	all := goflag.NewFlagSet("klog", goflag.ContinueOnError)
	klog.InitFlags(all)
	for name, value := range map[string]string{"logtostderr": "false", "one_output": "true", "stderrthreshold": "FATAL"} {
		if err := all.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	klog.SetOutputBySeverity("INFO", io.Discard)
	for _, severity := range []string{"WARNING", "ERROR"} {
		klog.SetOutputBySeverity(severity, filter{&out, expectedWarnings.Match})
	}
	log()
	klog.Flush()
	return out.String()
}

// TestLogKeepsWhatClientsName logs requests whose paths and agents look like lines that every start logs. The log
// must keep them.
func TestLogKeepsWhatClientsName(t *testing.T) {
	for _, text := range []string{
		`Resetting endpoints for master service "kubernetes" to [10.0.0.1]`,
		"\nW1122 03:04:05.678901       1 lease.go:265] Resetting endpoints for master service \"kubernetes\" to [::1]",
		"\n" + `E1122 03:04:05.678901       1 cache.go:35] "Unhandled Error" err="Unable to sync caches for RemoteAvailability controller"`,
	} {
		for name, log := range map[string]func(){
			"a panic":      func() { klog.ErrorS(nil, "Request panicked", "path", "/"+text) },
			"a message":    func() { klog.Warning(text) },
			"a bare error": func() { utilruntime.HandleError(fmt.Errorf("%s", text)) },
		} {
			if out := captured(t, log); out == "" {
				t.Errorf("%s with %q is not logged", name, text)
			}
		}
	}
}

// TestLogDropsWhatEveryStartHas gives lines as upstream's controllers write them.
func TestLogDropsWhatEveryStartHas(t *testing.T) {
	for line, dropped := range map[string]bool{
		`W1122 03:04:05.678901       1 lease.go:265] Resetting endpoints for master service "kubernetes" to [10.0.0.1]` + "\n":                                                                            true,
		`E1122 03:04:05.678901       1 repairip.go:383] "Unhandled Error" err="the ClusterIP [IPv4]: 10.0.0.1 for Service default/kubernetes is not allocated; repairing" logger="UnhandledError"` + "\n": false,
		`E1122 03:04:05.678901       1 cache.go:35] "Unhandled Error" err="Unable to sync caches for RemoteAvailability controller" logger="UnhandledError"` + "\n":                                       true,
		`E1122 03:04:05.678901       1 cache.go:35] "Unhandled Error" err="Unable to sync caches for another controller" logger="UnhandledError"` + "\n":                                                  false,
		`E1122 03:04:05.678901       1 shared_informer.go:405] "Unable to sync caches" logger="UnhandledError"` + "\n":                                                                                    true,
		`E1122 03:04:05.678901       1 shared_informer.go:405] "Unable to sync caches" logger="UnhandledError" controller="x"` + "\n":                                                                     false,
		`W1122 03:04:05.678901       1 lease.go:300] Something else` + "\n":                                                                                                                               false,
		`W1122 03:04:05.678901       1 chain.go:265] Resetting endpoints for master service "kubernetes" to [10.0.0.1]` + "\n":                                                                            false,
	} {
		var out bytes.Buffer
		if n, err := (filter{&out, expectedWarnings.Match}).Write([]byte(line)); err != nil || n != len(line) {
			t.Errorf("%q: %d, %v", line, n, err)
		}
		if got := out.Len() == 0; got != dropped {
			t.Errorf("dropped %v, want %v: %s", got, dropped, strings.TrimSpace(line))
		}
	}
}
