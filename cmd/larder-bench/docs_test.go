package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/larder-io/larder/bench/benchtest"
)

// document returns the documentation of larder-bench.
func document(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "bench.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestDocumentedCommands runs every command of the documentation, with a hundredth of each duration and a tenth of
// the pods.
func TestDocumentedCommands(t *testing.T) {
	text := document(t)
	example, err := os.ReadFile(filepath.Join("..", "..", "docs", "bench-scenario.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	second := regexp.MustCompile(`\b(\d+)s\b`)
	shorter := func(s string) string {
		return strings.ReplaceAll(second.ReplaceAllString(s, "${1}0ms"), "1000", "100")
	}
	_, kubeconfig := benchtest.Start(t)
	t.Setenv("KUBECONFIG", kubeconfig)
	t.Chdir(t.TempDir())
	if err := os.Mkdir("docs", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("docs", "bench-scenario.yaml"), []byte(strings.ReplaceAll(shorter(string(example)), "--rate 50", "--rate 500")), 0o600); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(text, -1) {
		for line := range strings.Lines(block[1]) {
			args := strings.Fields(line)
			if args[0] != "larder-bench" {
				continue
			}
			for i, arg := range args {
				// A busy machine may cross bounds of latencies.
				if i > 0 && strings.HasPrefix(args[i-1], "--max-p99") || i > 0 && args[i-1] == "--min-rate" {
					continue
				}
				args[i] = shorter(arg)
			}
			args = append(args[1:], "--max-regression=100000")
			ran++
			if out, _, err := run(t, args...); err != nil && !strings.Contains(err.Error(), "--max-p99") && !strings.Contains(err.Error(), "--min-rate") {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		}
	}
	if ran < 10 {
		t.Errorf("only %d commands are run: the expression is broken", ran)
	}
	for _, file := range []string{"mixed.json", "old.json", "scenario.csv"} {
		if info, err := os.Stat(file); err != nil || info.Size() == 0 {
			t.Errorf("%s was not written: %v", file, err)
		}
	}
}

// TestJSONIsDocumented checks that the documentation names each JSON field.
func TestJSONIsDocumented(t *testing.T) {
	text := document(t)
	_, kubeconfig := benchtest.Start(t)
	t.Setenv("KUBECONFIG", kubeconfig)
	file := filepath.Join(t.TempDir(), "old.json")
	args := []string{"read", "/version", "--requests=40", "--rounds=4", "--pid", fmt.Sprint(os.Getpid()), "--etcd-pid", fmt.Sprint(os.Getpid())}
	if _, _, err := run(t, append(args, "--json", file)...); err != nil {
		t.Fatal(err)
	}
	if _, _, err := run(t, append(args, "--baseline", file, "--max-regression=100000", "--json", file)...); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	var seen []string
	var visit func(v any)
	visit = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				visit(item)
			}
		case map[string]any:
			for key, item := range v {
				visit(item)
				if !slices.Contains(seen, key) && !regexp.MustCompile(`^\d+$`).MatchString(key) {
					seen = append(seen, key)
				}
			}
		}
	}
	visit(got)
	for _, key := range seen {
		if !strings.Contains(text, "`"+key+"`") {
			t.Errorf("docs/bench.md does not mention %q", key)
		}
	}
	if len(seen) < 40 {
		t.Errorf("got only %d fields: %v", len(seen), seen)
	}
}
