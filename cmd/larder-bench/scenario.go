package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/scenario"
	"github.com/larder-io/larder/bench/thresholds"
)

// scenarioVersion is the version of scenario files.
const scenarioVersion = 2

type scenarioFile struct {
	Version   int
	Workloads []struct {
		Name       string
		Run        string // workload command of this program, with its flags
		StartAfter metav1.Duration
	}
	Thresholds []string
}

// workloadCommands are the commands that run a workload against a target.
func workloadCommands(o *options) []*cobra.Command {
	return []*cobra.Command{
		customCommand(o), readCommand(o), watchListCommand(o), watchCommand(o), openCommand(o),
		writeCommand(o), componentsCommand(o), mixedCommand(o), slowCommand(o),
	}
}

func scenarioCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "scenario FILE", GroupID: whole, Short: "Run the workloads of a YAML or JSON file, all at the same time", Args: cobra.ExactArgs(1),
		Long: `Run the workloads of a YAML or JSON file, all at the same time. Each workload is a command of this
program with its flags. docs/bench.md describes the fields. Thresholds without a name apply to all
workloads together. The thresholds of the file are added to those of the flags.`,
		Example: "  larder-bench scenario docs/bench-scenario.yaml --max-p99 'get pods=50ms'",
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("FILE: %w", err)
			}
			s, err := o.readScenario(cmd, text)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return o.run(cmd, s.Kinds(), s.Run)
		},
	}
}

// readScenario parses a scenario file. It reports all mistakes at once.
func (o *options) readScenario(cmd *cobra.Command, text []byte) (*scenario.Scenario, error) {
	var f scenarioFile
	if err := yaml.UnmarshalStrict(text, &f); err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "error unmarshaling JSON: while decoding JSON: json: "))
	}
	var wrong []error
	if f.Version != scenarioVersion {
		wrong = append(wrong, fmt.Errorf("version is %d, want %d", f.Version, scenarioVersion))
	}
	if len(f.Workloads) == 0 {
		wrong = append(wrong, errors.New("there are no workloads"))
	}
	s, names := &scenario.Scenario{}, make(map[string]bool)
	for _, entry := range f.Workloads {
		w := scenario.Workload{Name: entry.Name, StartAfter: entry.StartAfter.Duration}
		if names[w.Name] || w.Name == "" || w.StartAfter < 0 {
			wrong = append(wrong, fmt.Errorf("workload %q: want a name that no other workload has, and a startAfter of 0 or more", w.Name))
		}
		names[w.Name] = true
		if err := o.readWorkload(&w, strings.Fields(entry.Run)); err != nil {
			wrong = append(wrong, fmt.Errorf("workload %q: %w", w.Name, err))
		}
		s.Workloads = append(s.Workloads, w)
	}
	for _, text := range f.Thresholds {
		name, value, _ := strings.Cut(text, " ")
		err := fmt.Errorf("want a bound such as max-p99 NAME=200ms")
		if slices.ContainsFunc(thresholds.Figures(), func(f *thresholds.Figure) bool { return f.Name == name }) {
			err = cmd.Flags().Set(name, value)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("threshold %q: %w", text, err))
		}
	}
	return s, errors.Join(wrong...)
}

// readWorkload parses a command and sets the workload that it runs.
func (o *options) readWorkload(w *scenario.Workload, args []string) error {
	own := &options{timeout: o.timeout, streams: o.streams, retryAfter: o.retryAfter}
	own.capture = func(kinds []*bench.Result, run workload) { w.Results, w.Run = kinds, run }
	w.User = own.user
	root := &cobra.Command{Use: "run", SilenceUsage: true, SilenceErrors: true}
	root.CompletionOptions.DisableDefaultCmd = true
	own.addUser(root.PersistentFlags())
	for _, cmd := range workloadCommands(own) {
		cmd.GroupID = ""
		root.AddCommand(cmd)
	}
	root.SetArgs(args)
	root.SetOut(io.Discard)
	if err := root.ExecuteContext(context.Background()); err != nil {
		return err
	}
	if w.Run == nil {
		return fmt.Errorf("run is %q: want a workload with its flags, such as read /api/v1/pods --rate 10 --duration 30s", strings.Join(args, " "))
	}
	return nil
}
