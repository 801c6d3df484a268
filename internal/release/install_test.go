package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// proxy is a module proxy in a directory. It has this module as it is in the tree; the user's proxy serves all others.
type proxy struct {
	dir, version string
	env          []string
}

// newProxy fills a proxy. The hash of its contents is part of the version, so the build cache has only equal contents.
// The end of the test removes the version from the module cache.
func newProxy(t *testing.T) *proxy {
	t.Helper()
	root := filepath.Join("..", "..")
	p := &proxy{dir: t.TempDir()}
	packed := filepath.Join(p.dir, "module.zip")
	p.version = "v0.0.0-h" + p.pack(t, root, packed, "v0.0.0")[:12]
	at := filepath.Join(p.dir, filepath.FromSlash(modulePath), "@v", p.version)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	p.pack(t, root, at+".zip", p.version)
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{
		at + ".mod":                             mod,
		at + ".info":                            fmt.Appendf(nil, `{"Version":%q}`, p.version),
		filepath.Join(filepath.Dir(at), "list"): []byte(p.version + "\n"),
	}
	for name, text := range files {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.setEnv(t)
	return p
}

// pack writes the module and returns the hash of its files.
func (p *proxy) pack(t *testing.T, root, name, version string) string {
	t.Helper()
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	hash := sha256.New()
	if err := zip.CreateFromDir(io.MultiWriter(file, hash), module.Version{Path: modulePath, Version: version}, root); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

func (p *proxy) setEnv(t *testing.T) {
	t.Helper()
	goEnv := func(name string) string {
		value, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(value))
	}
	p.env = append(os.Environ(),
		"GOPROXY=file://"+filepath.ToSlash(p.dir)+","+goEnv("GOPROXY"), "GONOPROXY=none", "GOWORK=off",
		"GONOSUMDB="+strings.TrimPrefix(goEnv("GONOSUMDB")+","+modulePath, ","), "GOFLAGS=-modcacherw -ldflags=-s")
	cache := goEnv("GOMODCACHE")
	t.Cleanup(func() {
		unpacked := filepath.Join(cache, filepath.FromSlash(modulePath)+"@"+p.version)
		downloads := filepath.Join(cache, "cache", "download", filepath.FromSlash(modulePath), "@v")
		left, _ := filepath.Glob(filepath.Join(downloads, p.version+".*"))
		for _, name := range append(left, unpacked, filepath.Join(downloads, "list")) {
			if err := os.RemoveAll(name); err != nil {
				t.Error(err)
			}
		}
		_ = os.Remove(filepath.Dir(unpacked)) // if it is empty
	})
}

// run runs go in dir and returns what it prints.
func (p *proxy) run(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = dir, append(p.env, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestGoInstall installs the server with Go alone, without this tree. It resolves all modules of the benchmark, and packs
// the installed programs.
func TestGoInstall(t *testing.T) {
	if testing.Short() {
		t.Skip("installs from source")
	}
	p, bin := newProxy(t), t.TempDir()
	p.run(t, t.TempDir(), []string{"GOBIN=" + bin}, "install", modulePath+"/cmd/larder@"+p.version)
	p.run(t, t.TempDir(), []string{"GOBIN=" + bin}, "install", "-n", modulePath+"/cmd/larder-bench@"+p.version)
	program := filepath.Join(bin, "larder")
	out, err := exec.Command(program, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	if want := "larder " + p.version + "\nkubernetes v1.36.3\n"; !strings.HasPrefix(string(out), want) {
		t.Errorf("larder --version printed %q, want %q first", out, want)
	}
	buildTree(t, bin, "k8s.io/kubernetes/cmd/kubectl")
	testPackages(t, bin)
}

// TestImport has a program in another module follow an etcd with the library. That module must not require Kubernetes'
// server.
func TestImport(t *testing.T) {
	p, dir := newProxy(t), t.TempDir()
	source, err := os.ReadFile(filepath.Join("..", "..", "examples", "follow", "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), source, 0o600); err != nil {
		t.Fatal(err)
	}
	p.run(t, dir, nil, "mod", "init", "example.org/follow")
	p.run(t, dir, nil, "get", modulePath+"@"+p.version)
	p.run(t, dir, nil, "mod", "tidy")
	p.run(t, dir, nil, "build", "-o", os.DevNull, ".")
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []string{"k8s.io/kubernetes ", "k8s.io/apiserver ", "go.etcd.io/etcd/server/v3 "} {
		if strings.Contains(string(mod), "\t"+server) {
			t.Errorf("the module requires %s:\n%s", server, mod)
		}
	}
}
