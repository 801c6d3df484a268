package programs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

func TestMain(m *testing.M) { proctest.Main(m) }

// TestProgramsHaveLardersVersions checks that modules linked into both Larder and the programs have one version, so
// that they are compiled once. If it fails after a change of go.mod, set the versions in programs.mod. Then run `go
// mod tidy` in a directory where the two files have their usual names.
func TestProgramsHaveLardersVersions(t *testing.T) {
	ours, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	requires := regexp.MustCompile(`(?m)^\t(\S+) (v\S+)`)
	larder := make(map[string]string)
	for _, found := range requires.FindAllStringSubmatch(string(ours), -1) {
		larder[found[1]] = found[2]
	}
	replaced := moduleFile[strings.Index(moduleFile, "replace"):]
	shared := 0
	for _, found := range requires.FindAllStringSubmatch(moduleFile, -1) {
		module, version := found[1], found[2]
		if strings.Contains(replaced, module+" => "+module+" "+larder[module]+"\n") {
			version = larder[module]
		}
		if want, ok := larder[module]; ok {
			shared++
			if version != want && want != "v0.0.0" && version != "v0.0.0" {
				t.Errorf("%s is %s in programs.mod and %s in go.mod", module, version, want)
			}
		}
	}
	if shared < 50 {
		t.Errorf("found only %d modules that both have: the expression is broken", shared)
	}
}

// TestDirectoryMustHoldAllPrograms checks that each missing program is an error.
func TestDirectoryMustHoldAllPrograms(t *testing.T) {
	dir := t.TempDir()
	for i, name := range files {
		path := filepath.Join(dir, name)
		if _, err := Find(dir); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), name) {
			t.Errorf("with %d programs: %v", i, err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Find(dir); err != nil || got != dir {
		t.Errorf("found %v %v", got, err)
	}
}

// cacheDir returns the directory below which Build keeps programs, in an empty cache of this user.
func cacheDir(t *testing.T) string {
	t.Helper()
	for _, variable := range []string{"HOME", "XDG_CACHE_HOME"} {
		t.Setenv(variable, t.TempDir())
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(cache, "larder", "programs")
}

// TestBuildIsImpossible checks that if the go command is missing or fails, the error says what to do, and no files
// remain.
func TestBuildIsImpossible(t *testing.T) {
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "go"), []byte("#!/bin/sh\necho first\necho no network >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{t.TempDir(): "install Go", broken: "no network"} {
		t.Setenv("PATH", path)
		cache := cacheDir(t)
		_, err := Build(t.Context(), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--programs") {
			t.Errorf("want %q, got %v", want, err)
		}
		if left, err := filepath.Glob(filepath.Join(cache, ".build-*")); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	}
}

// TestBuildIsKept checks that a second call does not build the programs again.
func TestBuildIsKept(t *testing.T) {
	dir := filepath.Join(cacheDir(t), key())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", "")
	var said strings.Builder
	got, err := Build(t.Context(), &said)
	if err != nil || got != dir || said.Len() > 0 {
		t.Errorf("got %v %v, said %q", got, err, said.String())
	}
}
