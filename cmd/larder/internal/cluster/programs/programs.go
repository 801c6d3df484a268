package programs

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // the module's files
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// The go.mod and go.sum of the programs' module. Under their usual names they would make this directory a separate
// module, whose files cannot be embedded.
var (
	//go:embed programs.mod
	moduleFile string
	//go:embed programs.sum
	sumFile string
)

// The files in a directory of programs.
const (
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kwok              = "kwok"
	// Stages is the file with kwok's stages of nodes and pods, with the name and content of kwok's releases.
	Stages = "stage-fast.yaml"
)

var files = []string{ControllerManager, Scheduler, Kwok, Stages}

// Find returns the absolute path of dir, which must hold all files.
func Find(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("programs: %w", err)
	}
	for _, name := range files {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		if err != nil {
			return "", fmt.Errorf("programs: %w", err)
		}
		if !info.Mode().IsRegular() {
			return "", fmt.Errorf("programs: %s is not a file", path)
		}
	}
	return dir, nil
}

// Build returns the directory of the programs in this user's cache. If programs are missing, it says so to progress
// and builds all, which takes minutes.
func Build(ctx context.Context, progress io.Writer) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("programs: no cache directory: %w", err)
	}
	cache = filepath.Join(cache, "larder", "programs")
	dir := filepath.Join(cache, key())
	if found, err := Find(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return found, err
	}
	if _, err := exec.LookPath("go"); err != nil {
		return "", errors.New("programs: building kube-controller-manager, kube-scheduler and kwok needs the go command; " +
			"install Go (https://go.dev/dl), or name a directory that holds them with --programs")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("programs: %w", err)
	}
	fmt.Fprintf(progress, "building kube-controller-manager, kube-scheduler and kwok into %s; this takes minutes, only once\n", dir)
	stage, err := os.MkdirTemp(cache, ".build-")
	if err != nil {
		return "", fmt.Errorf("programs: %w", err)
	}
	defer os.RemoveAll(stage)
	if err := build(ctx, stage); err != nil {
		return "", err
	}
	for _, name := range files {
		if err := os.Rename(filepath.Join(stage, name), filepath.Join(dir, name)); err != nil {
			return "", fmt.Errorf("programs: %w", err)
		}
	}
	return Find(dir)
}

// stages matches the files of kwok's module that make up its stage-fast.yaml.
var stages = []string{"node/fast/*.yaml", "node/heartbeat-with-lease/*.yaml", "pod/fast/*.yaml"}

// build builds the programs into dir, in a module that it writes there.
func build(ctx context.Context, dir string) error {
	for name, data := range map[string]string{"go.mod": moduleFile, "go.sum": sumFile} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			return fmt.Errorf("programs: %w", err)
		}
	}
	// The compiler flags are Larder's, so that packages that Larder also links are not compiled again.
	args := []string{"build", "-buildvcs=false", "-ldflags", versionFlags(), "-o", dir + string(filepath.Separator),
		"k8s.io/kubernetes/cmd/" + ControllerManager, "k8s.io/kubernetes/cmd/" + Scheduler, "sigs.k8s.io/kwok/cmd/" + Kwok}
	_, err := command(ctx, dir, args...)
	if err != nil && ctx.Err() == nil { // the go command does not repeat a download that timed out
		_, err = command(ctx, dir, args...)
	}
	if err != nil {
		return err
	}
	kwok, err := command(ctx, dir, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok")
	if err != nil {
		return err
	}
	return joinStages(filepath.Join(kwok, "kustomize", "stage"), filepath.Join(dir, Stages))
}

// joinStages writes the stages in kwok's module to one file.
func joinStages(from, file string) error {
	var all bytes.Buffer
	for _, pattern := range stages {
		names, err := filepath.Glob(filepath.Join(from, filepath.FromSlash(pattern)))
		if err != nil || len(names) == 0 {
			return fmt.Errorf("programs: no %s in %s: %w", pattern, from, errors.Join(err, fs.ErrNotExist))
		}
		for _, name := range names {
			if filepath.Base(name) == "kustomization.yaml" {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				return fmt.Errorf("programs: %w", err)
			}
			fmt.Fprintf(&all, "---\n%s\n", bytes.TrimSpace(text))
		}
	}
	if err := os.WriteFile(file, all.Bytes(), 0o644); err != nil {
		return fmt.Errorf("programs: %w", err)
	}
	return nil
}

// command runs the go command in dir and returns its output.
func command(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("programs: %w", context.Cause(ctx))
		}
		return "", fmt.Errorf("programs: kube-controller-manager, kube-scheduler and kwok cannot be built; "+
			"a directory that holds them can be named with --programs: go %s: %w: %s", args[0], err, last(problem.String(), 3))
	}
	return strings.TrimSpace(out.String()), nil
}

// Version returns the Kubernetes release of kube-controller-manager and kube-scheduler.
func Version() string {
	found := regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes (v\S+)`).FindStringSubmatch(moduleFile)
	if found == nil {
		panic("programs: programs.mod names no version of k8s.io/kubernetes")
	}
	return found[1]
}

// versionFlags returns the linker flags of the release's own build (kubernetes hack/lib/version.sh), except commit
// and date, which the module does not have.
func versionFlags() string {
	version := Version()
	numbers := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	var flags []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, set := range [][2]string{
			{"gitVersion", version}, {"gitMajor", numbers[0]}, {"gitMinor", numbers[1]},
			{"gitTreeState", "clean"}, {"gitCommit", "unknown"}, {"buildDate", "1970-01-01T00:00:00Z"},
		} {
			flags = append(flags, "-X "+pkg+"."+set[0]+"="+set[1])
		}
	}
	return strings.Join(flags, " ")
}

// key returns a hash of the programs' sources.
func key() string {
	hash := sha256.New()
	for _, part := range []string{moduleFile, sumFile, runtime.GOOS + "/" + runtime.GOARCH} {
		fmt.Fprintf(hash, "%d\n%s", len(part), part)
	}
	return hex.EncodeToString(hash.Sum(nil)[:8])
}

// last returns the last n lines of text.
func last(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
