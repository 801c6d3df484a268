// Command release builds the files of a release of larder:
//
//	go -C internal/release run . -o dist
//
// For each platform it writes an archive, an archive for envtest, and a list of all modules in the
// program (SPDX). For Linux it adds a Debian package, a container image, and one image for all
// architectures. envtest-releases.yaml is the index for setup-envtest. SHA256SUMS lists all files.
// The version is the one that Go writes into the program, so build a release in a clean clone at its tag.
//
// Programs are static. The same commit gives the same bytes on any machine and at any time, because files
// have the time of the commit.
package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

const modulePath = "github.com/larder-io/larder"

func main() {
	to := flag.String("o", "dist", "directory to write to, relative to the root of the tree")
	platforms := flag.String("platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64", "platforms to build for")
	url := flag.String("url", "", "where the files will be served, for the index; the release on GitHub if empty")
	flag.Parse()
	err := os.Chdir(filepath.Join("..", ".."))
	if err == nil {
		err = release(*to, *url, strings.Split(*platforms, ","))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func release(to, url string, platforms []string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	made, err := commitTime()
	if err != nil {
		return err
	}
	kubernetes, err := kubernetesVersion(".")
	if err != nil {
		return err
	}
	host := runtime.GOOS + "/" + runtime.GOARCH
	dirs := make(map[string]string)
	for _, platform := range append(slices.Clone(platforms), host) {
		if dirs[platform] == "" {
			dirs[platform] = filepath.Join(to, "build", strings.ReplaceAll(platform, "/", "_"))
			if err := build(platform, dirs[platform], kubernetes); err != nil {
				return err
			}
		}
	}
	texts, err := textsOf(filepath.Join(dirs[host], "larder"), ".")
	if err != nil {
		return err
	}
	sums, index := new(bytes.Buffer), make(envtestIndex)
	var contained []*product
	for _, platform := range platforms {
		p, err := newProduct(platform, dirs[platform], texts, made)
		if err != nil {
			return err
		}
		p.kubernetes, p.index, p.url = kubernetes, index, cmp.Or(url, "https://"+modulePath+"/releases/download/"+p.version)
		if err := p.write(to, sums); err != nil {
			return err
		}
		if p.os == "linux" {
			contained = append(contained, p)
		}
	}
	if len(contained) > 1 {
		name := fmt.Sprintf("larder_%s_image.tar", strings.TrimPrefix(contained[0].version, "v"))
		if err := writeFile(to, name, imageOfAll(contained), sums); err != nil {
			return err
		}
	}
	if err := writeFile(to, "envtest-releases.yaml", index.yaml(), sums); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, "SHA256SUMS"), sums.Bytes(), 0o644)
}

// commitTime returns the time of the commit, which all files get.
func commitTime() (time.Time, error) {
	out, err := exec.Command("git", "log", "-1", "--format=%ct").Output()
	if err != nil {
		return time.Time{}, fmt.Errorf("time of the commit: %w", err)
	}
	seconds, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	return time.Unix(seconds, 0).UTC(), err
}

// kubernetesVersion returns the version of Kubernetes that the tree at root requires.
func kubernetesVersion(root string) (string, error) {
	out, err := exec.Command("go", "-C", root, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes").Output()
	return strings.TrimSpace(string(out)), err
}

func build(platform, dir, kubernetes string) error {
	goos, arch, ok := strings.Cut(platform, "/")
	if !ok {
		return fmt.Errorf("platform %q is not OS/ARCHITECTURE", platform)
	}
	const stamp = " -X k8s.io/client-go/pkg/version.gitVersion=%[1]s -X k8s.io/component-base/version.gitVersion=%[1]s"
	for program, flags := range map[string]string{"./cmd/larder": "", "k8s.io/kubernetes/cmd/kubectl": fmt.Sprintf(stamp, kubernetes)} {
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w"+flags, "-o", dir+string(filepath.Separator), program)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=", "GOWORK=off")
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build %s for %s: %w", program, platform, err)
		}
	}
	return nil
}

// texts are the manual page, the completion scripts and the license. They are the same on all
// platforms.
type texts struct{ man, bash, zsh, fish, license []byte }

// textsOf runs program for its texts. root is the directory of the module.
func textsOf(program, root string) (texts, error) {
	license, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		return texts{}, err
	}
	t := texts{license: license}
	for dst, args := range map[*[]byte][]string{
		&t.man: {"man"}, &t.bash: {"completion", "bash"}, &t.zsh: {"completion", "zsh"}, &t.fish: {"completion", "fish"},
	} {
		out, err := exec.Command(program, args...).Output()
		if err != nil {
			return texts{}, fmt.Errorf("%s %v: %w", program, args, err)
		}
		*dst = out
	}
	return t, nil
}

// product is a release for one platform.
type product struct {
	texts
	version  string // the module's version, such as v1.2.3
	os, arch string
	program  []byte
	kubectl  []byte
	info     *buildinfo.BuildInfo
	time     time.Time // time of all files
	level    int       // compression level

	kubernetes string       // version of Kubernetes, such as v1.2.3
	url        string       // base URL of the published files
	index      envtestIndex // index to which envtest adds the archive
}

func newProduct(platform, dir string, texts texts, made time.Time) (*product, error) {
	p := &product{texts: texts, time: made, level: gzip.BestCompression}
	p.os, p.arch, _ = strings.Cut(platform, "/")
	var err error
	if p.program, err = os.ReadFile(filepath.Join(dir, "larder")); err != nil {
		return nil, err
	}
	if p.kubectl, err = os.ReadFile(filepath.Join(dir, "kubectl")); err != nil {
		return nil, err
	}
	if p.info, err = buildinfo.Read(bytes.NewReader(p.program)); err != nil {
		return nil, err
	}
	if p.version = p.info.Main.Version; p.version == "" || p.version == "(devel)" {
		p.version = "v0.0.0-devel"
	}
	return p, nil
}

// write writes the product's files and appends their sums.
func (p *product) write(to string, sums *bytes.Buffer) error {
	name := fmt.Sprintf("larder_%s_%s_%s", strings.TrimPrefix(p.version, "v"), p.os, p.arch)
	files := map[string]func() []byte{
		name + ".tar.gz":    p.archive,
		p.envtestName():     p.envtest,
		name + ".spdx.json": p.sbom,
	}
	if p.os == "linux" {
		files[p.debName()] = p.deb
		files[name+"_image.tar"] = p.image
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := writeFile(to, name, files[name](), sums); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(to, name string, data []byte, sums *bytes.Buffer) error {
	if err := os.WriteFile(filepath.Join(to, name), data, 0o644); err != nil {
		return err
	}
	fmt.Fprintf(sums, "%x  %s\n", sha256.Sum256(data), name)
	return nil
}
