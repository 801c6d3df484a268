package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/report"
	"github.com/larder-io/larder/bench/thresholds"
)

// workload runs against a target and returns its results.
type workload func(ctx context.Context, t *bench.Target) ([]*bench.Result, error)

// single runs a workload with a single result.
func single[C any](o *options, cmd *cobra.Command, name string, c C, run func(context.Context, *bench.Target, C) (*bench.Result, error)) error {
	return o.run(cmd, named(name), func(ctx context.Context, t *bench.Target) ([]*bench.Result, error) {
		r, err := run(ctx, t, c)
		if r == nil {
			return nil, err
		}
		return []*bench.Result{r}, err
	})
}

// errInterrupted is the error of an interrupted run.
var errInterrupted = errors.New("interrupted: the results cover the work done until then")

// run runs a workload against the target, shows its progress and reports the results. kinds has the names of
// the expected results, so that thresholds can be checked before the run.
func (o *options) run(cmd *cobra.Command, kinds []*bench.Result, w workload) error {
	if o.capture != nil {
		o.capture(kinds, w)
		return nil
	}
	target, err := o.target()
	if err != nil {
		return err
	}
	old, err := o.check(kinds)
	if err != nil {
		return err
	}
	ended, end := context.WithCancel(context.Background())
	var showing sync.WaitGroup
	if !o.quiet {
		showing.Go(func() { showProgress(ended, cmd.ErrOrStderr(), target.Progress) })
	}
	found := &report.Report{}
	found.Results, err = o.repeat(cmd.Context(), target, w)
	end()
	showing.Wait()
	return o.finish(cmd, found, old, err)
}

// repeat runs all rounds of a workload. When ctx ends, the round ends gracefully and is the last one. With an error it
// also returns the results so far.
func (o *options) repeat(ctx context.Context, target *bench.Target, w workload) ([]*bench.Result, error) {
	var all []*bench.Result
	defer context.AfterFunc(ctx, target.Stop)()
	for round := range o.rounds {
		results, err := w(context.WithoutCancel(ctx), target)
		for _, r := range results {
			if o.rounds > 1 {
				r.Round = round + 1
			}
		}
		all = append(all, results...)
		if err != nil || ctx.Err() != nil {
			return all, err
		}
	}
	return all, nil
}

// check validates the flags and returns the results of the baseline.
func (o *options) check(kinds []*bench.Result) ([]*bench.Result, error) {
	if o.rounds < 1 {
		return nil, fmt.Errorf("--rounds must be at least 1, is %d", o.rounds)
	}
	if err := o.thresholds.Check(kinds); err != nil {
		return nil, err
	}
	for _, b := range o.thresholds.Bounds {
		if b.Figure.Cost && o.pid == 0 {
			return nil, fmt.Errorf("--%s needs --pid, because the figure is read from the server's process", b.Figure.Name)
		}
	}
	var names []string
	for _, r := range kinds {
		names = append(names, r.Name)
	}
	return o.prepare(names)
}

// prepare checks the directories of the output files, and reads the baseline, if any.
func (o *options) prepare(names []string) ([]*bench.Result, error) {
	for flag, name := range map[string]string{"json": o.outputs.json, "series": o.outputs.series, "markdown": o.outputs.markdown} {
		dir := filepath.Dir(name)
		if info, err := os.Stat(dir); name != "" && (err != nil || !info.IsDir()) {
			return nil, fmt.Errorf("--%s=%s: there is no directory %s", flag, name, dir)
		}
	}
	if o.baseline == "" {
		return nil, nil
	}
	f, err := os.Open(o.baseline)
	if err != nil {
		return nil, fmt.Errorf("--baseline: %w", err)
	}
	defer f.Close()
	old, err := report.Read(f)
	if err != nil {
		return nil, fmt.Errorf("--baseline %s: %w", o.baseline, err)
	}
	if o.regression >= 0 {
		if err := thresholds.CanCompare(old.All(), names, o.rounds); err != nil {
			return nil, fmt.Errorf("--baseline %s: %w", o.baseline, err)
		}
	}
	return old.All(), nil
}

// finish reports the results, even if the run failed, and compares them with the thresholds.
func (o *options) finish(cmd *cobra.Command, found *report.Report, old []*bench.Result, failed error) error {
	if cmd.Context().Err() != nil {
		failed = errors.Join(errInterrupted, failed)
	}
	if len(found.All()) == 0 && failed != nil {
		return failed
	}
	err := o.report(cmd, found, old, failed)
	switch {
	case failed == nil:
		return err
	case err != nil:
		return fmt.Errorf("%w\n%s", failed, err.Error()) // keeps the exit code of a failure
	}
	return failed
}

// report writes a report to standard output and the files of the flags. It returns an error if a threshold
// is crossed. failed is the error that ended the run.
func (o *options) report(cmd *cobra.Command, r *report.Report, old []*bench.Result, failed error) error {
	r.Title, r.Command = "larder-bench "+cmd.Name(), strings.Join(append([]string{"larder-bench"}, o.args...), " ")
	r.Machine, r.Date = bench.Machine(), time.Now()
	r.Cases = o.thresholds.Evaluate(r.Evaluated())
	if len(old) > 0 && failed == nil {
		const percent = 100
		var err error
		if r.Changes, err = thresholds.Compare(old, r.All(), o.regression/percent); err != nil {
			return err
		}
		r.Cases = append(r.Cases, thresholds.Cases(r.Changes)...)
	}
	err := r.Text(cmd.OutOrStdout())
	advise(cmd.ErrOrStderr(), r.All())
	if err := errors.Join(err, toFile(o.outputs.json, r.JSON), toFile(o.outputs.series, r.CSV), toFile(o.outputs.markdown, r.Markdown)); err != nil {
		return err
	}
	return thresholds.Err(r.Cases)
}

// advise prints hints about the failures of results, each hint once.
func advise(w io.Writer, results []*bench.Result) {
	said := make(map[string]bool)
	for _, r := range results {
		if r.FirstError == "" {
			continue
		}
		if text := adviceOn(r.FirstError); text != "" && !said[text] {
			said[text] = true
			fmt.Fprintln(w, "larder-bench: what to do:", text)
		}
	}
}

// toFile writes a file, unless name is "".
func toFile(name string, write func(io.Writer) error) error {
	if name == "" {
		return nil
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// showProgress prints progress at a fixed interval until ctx ends.
func showProgress(ctx context.Context, w io.Writer, progress func() string) {
	const interval = 10 * time.Second
	_ = wait.PollUntilContextCancel(ctx, interval, false, func(context.Context) (done bool, err error) {
		if text := progress(); text != "" {
			fmt.Fprintln(w, text)
		}
		return false, nil
	})
}
