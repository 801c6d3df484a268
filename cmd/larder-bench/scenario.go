package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/scenario"
)

func scenarioCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "scenario FILE", GroupID: whole, Short: "Run the workloads that a YAML or JSON file describes, all at the same time", Args: cobra.ExactArgs(1),
		Long: `Run the workloads that a YAML or JSON file describes, all at the same time: each with a name,
rates or stages, selectors and a user. docs/bench.md describes the fields. Thresholds without a
name hold for all workloads together; those of the file hold beside those of the flags.`,
		Example: "  larder-bench scenario docs/bench-scenario.yaml --max-p99 'get pods=50ms'",
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return fmt.Errorf("FILE: %w", err)
			}
			s, err := scenario.Read(filepath.Base(args[0]), f)
			f.Close()
			if err != nil {
				return err
			}
			o.thresholds.Bounds = append(s.Thresholds, o.thresholds.Bounds...)
			o.progress = s.Progress
			return o.run(cmd, s.Kinds(), func(ctx context.Context, t *bench.Target) ([]*bench.Result, error) {
				return s.Run(ctx, t, newRound())
			})
		},
	}
}
