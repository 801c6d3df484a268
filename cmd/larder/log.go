package main

import (
	goflag "flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"
)

// setsLogFlags reports whether any logging flag was set. If so, the log is kube-apiserver's. Otherwise silence shortens
// it.
func setsLogFlags(fs *pflag.FlagSet) bool {
	return changed(fs, func(all *pflag.FlagSet) { logsapi.AddFlags(logsapi.NewLoggingConfiguration(), all) })
}

// changed reports whether any of the flags that add adds was set in fs.
func changed(fs *pflag.FlagSet, add func(*pflag.FlagSet)) (any bool) {
	var all pflag.FlagSet
	add(&all)
	all.VisitAll(func(f *pflag.Flag) { any = any || fs.Changed(f.Name) })
	return any
}

// logStart writes the first lines of a log: the flags, the version, and the environment variables of Go's runtime
// (kubernetes cmd/kube-apiserver/app/server.go).
func logStart(flags *pflag.FlagSet, version string) {
	cliflag.PrintFlags(flags)
	klog.Infof("Version: %s", version)
	klog.InfoS("Golang settings", "GOGC", os.Getenv("GOGC"), "GOMAXPROCS", os.Getenv("GOMAXPROCS"), "GOTRACEBACK", os.Getenv("GOTRACEBACK"))
}

// silence drops klog's informational lines until the verbosity of the running server is raised. It also
// drops the warnings that libraries log at every start and end.
func silence() error {
	flags := goflag.NewFlagSet("klog", goflag.ContinueOnError)
	klog.InitFlags(flags)
	for name, value := range map[string]string{"logtostderr": "false", "one_output": "true", "stderrthreshold": "FATAL"} {
		if err := flags.Set(name, value); err != nil {
			return fmt.Errorf("log: %w", err)
		}
	}
	klog.SetOutputBySeverity("INFO", filter{os.Stderr, func([]byte) bool { return !klog.V(1).Enabled() }})
	for _, severity := range []string{"WARNING", "ERROR", "FATAL"} {
		klog.SetOutputBySeverity(severity, filter{os.Stderr, expectedWarnings.Match})
	}
	return nil
}

// filter writes the entries of a log, except those for which drops returns true.
type filter struct {
	io.Writer
	drops func(entry []byte) bool
}

// Write writes one entry.
func (f filter) Write(entry []byte) (int, error) {
	if f.drops(entry) {
		return len(entry), nil
	}
	return f.Writer.Write(entry)
}

// progressLog writes the lines of progress to the log, so that with --logging-format=json every line of output is JSON.
type progressLog struct{}

// Write logs one or more lines.
func (progressLog) Write(lines []byte) (int, error) {
	for line := range strings.Lines(string(lines)) {
		if line = strings.TrimSpace(line); line != "" {
			klog.Info(line)
		}
	}
	return len(lines), nil
}

// expectedWarnings matches the warnings that upstream's controllers log at every start or end:
//
//   - this server adds itself to the endpoints of the kubernetes service, or removes itself;
//   - a controller without aggregated servers ends;
//   - admission policies end before the informers have started, because the start has failed.
//
// The pattern includes klog's header with the source file, so that text from a client cannot match. klog
// writes each entry with one call of Write, even if the entry has several lines.
var expectedWarnings = regexp.MustCompile(`\A[WE]\d{4} [\d:.]+ +\d+ (?:` +
	`lease\.go:\d+\] Resetting endpoints for master service "kubernetes" to ` +
	`|cache\.go:\d+\] "Unhandled Error" err="Unable to sync caches for RemoteAvailability controller"` +
	`|shared_informer\.go:\d+\] "Unable to sync caches" logger="UnhandledError"\n)`)
