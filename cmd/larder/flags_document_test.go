package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/cockroachdb/datadriven" // has the flag -rewrite
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	upstream "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// flagsMark is the line of docs/flags.md below which the tables are; with -rewrite the test
// writes them.
const flagsMark = "<!-- Below: go test ./cmd/larder -run TestFlagsDocumentIsComplete -rewrite -->\n"

// TestFlagsDocumentIsComplete checks that docs/flags.md has each flag that kube-apiserver does not have, with its
// default and its help text.
func TestFlagsDocumentIsComplete(t *testing.T) {
	rewrite := flag.Lookup("rewrite") // datadriven's
	path := filepath.Join("..", "..", "docs", "flags.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, is, found := strings.Cut(string(text), flagsMark)
	if !found {
		t.Fatalf("%s has no line %q", path, flagsMark)
	}
	want := flagTables(newRoot())
	if rewrite.Value.String() == "true" {
		if err := os.WriteFile(path, []byte(head+flagsMark+want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if is != want {
		t.Errorf("%s does not have the flags that there are: run the test with -rewrite", path)
	}
	if !strings.Contains(want, "| `--data-dir` |") || strings.Contains(want, "`--etcd-prefix`") {
		t.Error("the tables do not have Larder's own flags alone")
	}
}

// flagTables returns a table of each command's own flags, each flag of a server once.
func flagTables(root *cobra.Command) string {
	var out bytes.Buffer
	told := make(map[string]bool) // flags of servers: kube-apiserver's, and the flags of earlier tables
	sections := upstream.NewServerRunOptions().Flags()
	for _, section := range sections.FlagSets {
		section.VisitAll(func(flag *pflag.Flag) { told[flag.Name] = true })
	}
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		var rows []string
		serves := cmd.Flags().Lookup("secure-port") != nil
		cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
			if flag.Name == "help" || flag.Hidden || flag.Deprecated != "" || serves && told[flag.Name] {
				return
			}
			told[flag.Name] = told[flag.Name] || serves
			rows = append(rows, fmt.Sprintf("| `--%s` | %s | %s |\n", flag.Name, defaultOf(flag), strings.ReplaceAll(flag.Usage, "|", "\\|")))
		})
		if len(rows) > 0 {
			fmt.Fprintf(&out, "\n## %s\n\n| flag | default | |\n|---|---|---|\n%s", cmd.CommandPath(), strings.Join(rows, ""))
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	serve, _, err := root.Find([]string{"serve"})
	if err != nil {
		panic(err)
	}
	visit(serve)
	for _, cmd := range root.Commands() {
		if cmd != serve {
			visit(cmd)
		}
	}
	return out.String()
}

// defaultOf returns a flag's default for a table, "" if there is none, or if the usage names it.
func defaultOf(flag *pflag.Flag) string {
	switch flag.DefValue {
	case "", "[]":
		return ""
	}
	return "`" + flag.DefValue + "`"
}
