package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// newMan returns the command that prints the manual page, for packages.
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

// manual returns the manual page of a program: the description and the flags of each command.
func manual(root *cobra.Command) string {
	var b strings.Builder
	name := root.Name()
	fmt.Fprintf(&b, ".TH %s 1 \"\" %q \"User Commands\"\n.SH NAME\n%s \\- %s\n", strings.ToUpper(name), name+" "+larderVersion(), name, roff(root.Short))
	var describe func(*cobra.Command)
	describe = func(c *cobra.Command) {
		usage := cmp.Or(c.Long, c.Short+".") + "\n\n" + c.UseLine() + "\n\n" + c.LocalFlags().FlagUsagesWrapped(76)
		fmt.Fprintf(&b, ".SH %s\n.nf\n%s\n.fi\n", strings.ToUpper(roff(c.CommandPath())), roff(usage))
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() && sub.Name() != "help" {
				describe(sub)
			}
		}
	}
	describe(root)
	b.WriteString(".SH FILES\n.TP\n.I /etc/default/larder\nFlags of the service that packages install.\n" +
		".TP\n.I /var/lib/larder\nFiles of that service, including admin.kubeconfig.\n")
	return b.String()
}

// roff escapes text for groff.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'").Replace(strings.TrimSpace(text))
	return strings.ReplaceAll(text, "\t", "    ")
}
