package testservers

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// module is the module with the sources of all programs.
const module = "github.com/larder-io/larder"

// Build builds the programs that c does not name into dir, from the source tree around the current directory. It
// returns c with the paths of all programs, and calls say before it builds one.
func Build(ctx context.Context, c Config, dir string, say func(string)) (Config, error) {
	if c.Stock != "" && c.Larder != "" && c.Etcd != "" {
		return c, nil
	}
	root, err := goCommand(ctx, "", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil || root == "" {
		return c, fmt.Errorf("testservers: programs can be built only inside Larder's source tree and with Go installed: change to that directory, or name the programs with --stock, --larder and --etcd: %w", err)
	}
	programs := []struct {
		program *string
		name    string
		dir     string
		args    []string
	}{
		{&c.Stock, "kube-apiserver", filepath.Join(root, "bench", "buildapiserver"), []string{"run", ".", "-o", dir}},
		{&c.Larder, "larder", root, []string{"build", "-o", dir, "./cmd/larder"}},
		{&c.Etcd, "etcd", root, []string{"build", "-o", filepath.Join(dir, "etcd"), "go.etcd.io/etcd/server/v3"}},
	}
	for _, p := range programs {
		if *p.program != "" {
			continue
		}
		say(fmt.Sprintf("building %s, which takes minutes the first time", p.name))
		if _, err := goCommand(ctx, p.dir, p.args...); err != nil {
			return c, fmt.Errorf("testservers: building %s: %w", p.name, cmp.Or(ctx.Err(), err))
		}
		*p.program = filepath.Join(dir, p.name)
	}
	return c, nil
}

func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	var out, problem bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &problem
	// The process group lets the build's child processes end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = grace
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("testservers: go %s: %w\n%s", args[0], err, problem.String())
	}
	return strings.TrimSpace(out.String()), nil
}
