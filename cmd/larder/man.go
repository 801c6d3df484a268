package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newMan prints the manual page, for packages.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man",
		Short:  "Print the manual page",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), manual(cmd.Root()))
			return err
		},
	}
}

// manual returns the manual page of a program: all its commands and their flags.
func manual(root *cobra.Command) string {
	var b strings.Builder
	name := root.Name()
	fmt.Fprintf(&b, ".TH %s 1 \"\" %q \"User Commands\"\n", strings.ToUpper(name), name+" "+larderVersion())
	b.WriteString(".nh\n.ad l\n") // flags and their defaults are long words
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", name, roff(root.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n.I command\n.RI [ flags ]\n", name)
	b.WriteString(".SH COMMANDS\n")
	var commands []*cobra.Command
	var collect func(*cobra.Command)
	collect = func(parent *cobra.Command) {
		for _, c := range parent.Commands() {
			if c.IsAvailableCommand() && c.Name() != "help" {
				commands = append(commands, c)
				collect(c)
			}
		}
	}
	collect(root)
	for _, c := range commands {
		fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(c.UseLine()), roff(c.Short))
	}
	for _, c := range commands {
		if c.Name() != "completion" && c.Parent().Name() != "completion" {
			manualOf(&b, c)
		}
	}
	b.WriteString(".SH FILES\n.TP\n.I /etc/default/larder\nFlags of the service that packages install.\n" +
		".TP\n.I /var/lib/larder\nFiles of that service, including admin.kubeconfig.\n")
	return b.String()
}

// manualOf writes the section of a command.
func manualOf(b *strings.Builder, c *cobra.Command) {
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	fmt.Fprintf(b, ".SH %s\n", strings.ToUpper(roff(c.CommandPath())))
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		fmt.Fprintf(b, ".PP\n%s\n", roff(paragraph))
	}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		short := ""
		if f.Shorthand != "" {
			short = "-" + f.Shorthand + ", "
		}
		if kind != "" {
			kind = " " + kind
		}
		usage = strings.TrimSpace(usage)
		if f.Deprecated != "" {
			usage += " Deprecated: " + f.Deprecated
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(short+"--"+f.Name+kind), roff(usage))
		if f.DefValue != "" && f.DefValue != "[]" {
			fmt.Fprintf(b, "Default: %s\n", roff(f.DefValue))
		}
	})
}

// roff escapes text for groff.
func roff(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text), "\n")
	for i, line := range lines {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			line = `\&` + line
		}
		lines[i] = line
	}
	return strings.Join(lines, "\n")
}
