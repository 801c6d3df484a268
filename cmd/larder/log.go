package main

import (
	goflag "flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"
)

// asksForLog reports whether any flag of logging was given: then it is logged as
// kube-apiserver would, and else less.
func asksForLog(fs *pflag.FlagSet) bool {
	return changed(fs, func(all *pflag.FlagSet) { logsapi.AddFlags(logsapi.NewLoggingConfiguration(), all) })
}

// changed reports whether any of the flags that add adds was given in fs.
func changed(fs *pflag.FlagSet, add func(*pflag.FlagSet)) (any bool) {
	var all pflag.FlagSet
	add(&all)
	all.VisitAll(func(f *pflag.Flag) { any = any || fs.Changed(f.Name) })
	return any
}

// silence drops the informational lines of libraries until somebody asks a running server
// for them, and what belongs to every start and end.
func silence() error {
	flags := goflag.NewFlagSet("klog", goflag.ContinueOnError)
	klog.InitFlags(flags)
	for name, value := range map[string]string{"logtostderr": "false", "one_output": "true", "stderrthreshold": "FATAL"} {
		if err := flags.Set(name, value); err != nil {
			return fmt.Errorf("log: %w", err)
		}
	}
	klog.SetOutputBySeverity("INFO", wanted{os.Stderr})
	for _, severity := range []string{"WARNING", "ERROR", "FATAL"} {
		klog.SetOutputBySeverity(severity, uncommon{os.Stderr})
	}
	return nil
}

// wanted passes on the lines of a log once its level was raised.
type wanted struct{ io.Writer }

// Write takes one entry.
func (w wanted) Write(entry []byte) (int, error) {
	if !klog.V(1).Enabled() {
		return len(entry), nil
	}
	return w.Writer.Write(entry)
}

// logged is what is told of the start and the end, as lines of the log: in a log of JSON
// every line is.
type logged struct{}

// Write takes one or more lines.
func (logged) Write(lines []byte) (int, error) {
	for line := range strings.Lines(string(lines)) {
		if line = strings.TrimSpace(line); line != "" {
			klog.Info(line)
		}
	}
	return len(lines), nil
}

// uncommon passes on the lines of a log but those that belong to every start and end.
type uncommon struct{ io.Writer }

// common is what upstream's controllers warn of when this server enters itself into
// the endpoints of the kubernetes service and removes itself again, when they hear of that
// service's making before they hear of its address's, and when they end without ever having
// had an aggregated server to look after.
//
// It begins with klog's own header, which names the source file that logs: clients have
// a say in what follows it at most. An entry is written at once, however many lines it has.
var common = regexp.MustCompile(`\A[WE]\d{4} [\d:.]+ +\d+ (?:` +
	`lease\.go:\d+\] Resetting endpoints for master service "kubernetes" to ` +
	`|repairip\.go:\d+\] "Unhandled Error" err="the ClusterIP \[IPv[46]\]: [\da-f.:]+ for Service default/kubernetes is not allocated; repairing"` +
	`|cache\.go:\d+\] "Unhandled Error" err="Unable to sync caches for RemoteAvailability controller")`)

// Write takes one entry.
func (u uncommon) Write(entry []byte) (int, error) {
	if common.Match(entry) {
		return len(entry), nil
	}
	return u.Writer.Write(entry)
}
