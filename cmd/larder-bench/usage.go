package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// groupKey is the annotation of a flag that says to which group it belongs.
const groupKey = "group"

// group collects flags that usage shows together.
type group struct {
	*pflag.FlagSet
	name string
	to   *pflag.FlagSet
}

func newGroup(to *pflag.FlagSet, name string) *group {
	return &group{pflag.NewFlagSet(name, pflag.ContinueOnError), name, to}
}

// done adds the flags to where they belong.
func (g *group) done() {
	g.VisitAll(func(f *pflag.Flag) {
		f.Annotations = map[string][]string{groupKey: {g.name}}
		g.to.AddFlag(f)
	})
}

// usage prints how a command is used: its own flags first, then those of each group. The
// program's own usage lists the commands, and leaves the flags of a load to them.
func usage(cmd *cobra.Command) error {
	w := cmd.OutOrStderr()
	line := cmd.UseLine()
	if cmd.HasAvailableSubCommands() {
		line = cmd.CommandPath() + " COMMAND [flags]"
	}
	fmt.Fprintf(w, "Usage:\n  %s\n", line)
	if cmd.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n%s\n", cmd.Example)
	}
	for _, g := range cmd.Groups() {
		fmt.Fprintf(w, "\n%s\n", g.Title)
		for _, c := range cmd.Commands() {
			if c.GroupID == g.ID && c.IsAvailableCommand() {
				fmt.Fprintf(w, "  %-10s %s\n", c.Name(), c.Short)
			}
		}
	}
	flagUsages(w, cmd)
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\n%s COMMAND --help shows the flags of a command, which has more.\n", cmd.CommandPath())
	}
	return nil
}

func flagUsages(w io.Writer, cmd *cobra.Command) {
	sets := make(map[string]*pflag.FlagSet)
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		name := ""
		if annotation := f.Annotations[groupKey]; len(annotation) > 0 {
			name = annotation[0]
		}
		if f.Name == "help" || f.Hidden {
			return
		}
		if sets[name] == nil {
			sets[name] = pflag.NewFlagSet(name, pflag.ContinueOnError)
		}
		sets[name].AddFlag(f)
	})
	for _, name := range []string{"", groupLoad, groupServer, groupOutput, groupThresholds} {
		set := sets[name]
		if set == nil {
			continue
		}
		head := name
		if head == "" {
			head = "Flags:"
		}
		const widest = 110
		fmt.Fprintf(w, "\n%s\n%s", head, strings.TrimRight(set.FlagUsagesWrapped(widest), "\n")+"\n")
	}
}
