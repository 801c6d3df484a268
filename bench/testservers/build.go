package testservers

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// module is the module with the sources of all programs.
const module = "github.com/larder-io/larder"

// Build makes dir the directory of the servers' files. It builds the programs that t does not name into dir, from the
// source tree around the current directory. It builds kube-apiserver only if t measures it.
func (t *Trials) Build(ctx context.Context, dir string) error {
	c := &t.TestServers
	c.Dir = dir
	for _, p := range []struct {
		needed  bool
		program *string
		name    string
		dir     string // in the source tree
		args    []string
	}{
		{slices.Contains(t.Servers, Stock), &c.Stock, "kube-apiserver", "bench/buildapiserver", []string{"run", ".", "-o", dir}},
		{true, &c.Larder, "larder", ".", []string{"build", "-o", dir, "./cmd/larder"}},
		{true, &c.Etcd, "etcd", ".", []string{"build", "-o", filepath.Join(dir, "etcd"), "go.etcd.io/etcd/server/v3"}},
	} {
		if *p.program != "" || !p.needed {
			continue
		}
		root, err := goCommand(ctx, "", "list", "-m", "-f", "{{.Dir}}", module)
		if err != nil || root == "" {
			return fmt.Errorf("testservers: programs can be built only inside Larder's source tree and with Go installed: change to that directory, or name the programs with --stock, --larder and --etcd: %w", err)
		}
		t.Sayf("building %s, which takes minutes the first time", p.name)
		if _, err := goCommand(ctx, filepath.Join(root, p.dir), p.args...); err != nil {
			return fmt.Errorf("testservers: building %s: %w", p.name, cmp.Or(ctx.Err(), err))
		}
		*p.program = filepath.Join(dir, p.name)
	}
	return nil
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
