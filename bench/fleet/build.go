package fleet

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// module is where the sources of all programs are found.
const module = "github.com/larder-io/larder"

// Build builds those programs into dir that c does not name, from the source tree
// around the current directory, and returns c with all of them.
func Build(ctx context.Context, c Config, dir string, say func(string)) (Config, error) {
	if c.Stock != "" && c.Larder != "" && c.Etcd != "" {
		return c, nil
	}
	root, err := goCommand(ctx, "", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil || root == "" {
		return c, fmt.Errorf("fleet: programs can be built inside Larder's source tree alone: %w", err)
	}
	for _, p := range []struct {
		program *string
		name    string
		dir     string
		args    []string
	}{
		{&c.Stock, "kube-apiserver", filepath.Join(root, "bench", "stock"), []string{"run", ".", "-o", dir}},
		{&c.Larder, "larder", root, []string{"build", "-o", dir, "./cmd/larder"}},
		{&c.Etcd, "etcd", root, []string{"build", "-o", filepath.Join(dir, "etcd"), "go.etcd.io/etcd/server/v3"}},
	} {
		if *p.program != "" {
			continue
		}
		say("building " + p.name)
		if _, err := goCommand(ctx, p.dir, p.args...); err != nil {
			return c, err
		}
		*p.program = filepath.Join(dir, p.name)
	}
	return c, nil
}

// goCommand runs the go command and returns what it printed.
func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	var out, problem bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &problem
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("fleet: go %s: %w\n%s", args[0], err, problem.String())
	}
	return strings.TrimSpace(out.String()), nil
}
