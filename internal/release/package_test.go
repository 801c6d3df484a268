package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
)

// TestPackages packs a program that was built for a release.
func TestPackages(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and installs every package")
	}
	if *released == "" {
		t.Skip("no -programs; TestGoInstall packs the program that it installs")
	}
	testPackages(t, *released)
}

// testPackages packs the programs in a directory. It unpacks the files for Linux as users do, and runs the programs as a
// user who may write only the data.
func testPackages(t *testing.T, dir string) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("only root on Linux can run programs as another user in another root")
	}
	texts, err := textsOf(filepath.Join(dir, "larder"), filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	p, err := newProduct(runtime.GOOS+"/"+runtime.GOARCH, dir, texts, time.Unix(1e9, 0).UTC())
	if err != nil {
		t.Fatal(err)
	}
	p.level = gzip.BestSpeed
	t.Run("sbom", func(t *testing.T) { testSBOM(t, p) })
	t.Run("deb", func(t *testing.T) { testDeb(t, p) })
	t.Run("image", func(t *testing.T) { testImage(t, p) })
}

// testDeb has dpkg unpack the package into a separate root.
func testDeb(t *testing.T, p *product) {
	deb := p.deb()
	name, root := filepath.Join(t.TempDir(), p.debName()), t.TempDir()
	write(t, name, deb)
	write(t, filepath.Join(root, "var/lib/dpkg/status"), nil)
	for _, dir := range []string{"updates", "info"} {
		if err := os.MkdirAll(filepath.Join(root, "var/lib/dpkg", dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	output(t, "dpkg", "--root="+root, "--force-script-chrootless", "--install", name)
	if listed := output(t, "dpkg", "--root="+root, "-s", "larder"); !strings.Contains(listed, "Version: "+p.debVersion()+"\n") || !strings.Contains(listed, "Status: install ok installed\n") || !strings.Contains(listed, "\n /etc/default/larder ") {
		t.Errorf("unexpected status of the package:\n%s", listed)
	}
	if wrong := output(t, "dpkg", "--root="+root, "--verify", "larder"); wrong != "" {
		t.Errorf("the files that dpkg finds differ from the packed ones:\n%s", wrong)
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		output(t, "sh", "-n", filepath.Join(root, "var/lib/dpkg/info/larder."+script))
	}
	output(t, "bash", "-n", filepath.Join(root, "usr/share/bash-completion/completions/larder"))
	if page := output(t, "gzip", "-dc", filepath.Join(root, "usr/share/man/man1/larder.1.gz")); !strings.Contains(page, `\-\-etcd\-servers`) {
		t.Errorf("the manual page lacks flags:\n%.500s", page)
	}
	checkUnit(t, root)
	runIn(t, root, 4711, 4711, []string{"serve", "--data-dir=/var/lib/larder"})
}

// checkUnit has systemd read the unit.
func checkUnit(t *testing.T, root string) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("systemd-analyze is not installed")
		return
	}
	at := filepath.Join(t.TempDir(), "larder.service")
	write(t, at, bytes.ReplaceAll(unit, []byte("=/usr/bin/larder"), []byte("="+filepath.Join(root, "usr/bin/larder"))))
	out, _ := exec.Command("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", at).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "larder") {
			t.Errorf("systemd-analyze verify: %s", line)
		}
	}
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=20", at).CombinedOutput()
	if err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
	if overall := regexp.MustCompile(`Overall exposure.*`).Find(out); overall != nil {
		t.Logf("%s", overall)
	}
}

// testImage unpacks the image as its index, manifest and configuration describe it.
func testImage(t *testing.T, p *product) {
	image := p.image()
	files := make(map[string][]byte)
	each(t, bytes.NewReader(image), func(h *tar.Header, data []byte) { files[h.Name] = data })
	blob := func(digest string) []byte { return files["blobs/sha256/"+strings.TrimPrefix(digest, "sha256:")] }
	var index struct{ Manifests []descriptor }
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	var config struct {
		OS, Architecture string
		Config           struct {
			User            string
			Entrypoint, Cmd []string
		}
	}
	parse(t, files["index.json"], &index)
	parse(t, blob(index.Manifests[0].Digest), &manifest)
	parse(t, blob(manifest.Config.Digest), &config)
	if config.OS != p.os || config.Architecture != p.arch || config.Config.User != imageUser || !slices.Equal(config.Config.Entrypoint, []string{"/usr/bin/larder"}) {
		t.Errorf("configuration %+v", config)
	}
	dockerfile, err := os.ReadFile("packaging/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	command, err := json.Marshal(imageCommand())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"USER " + imageUser, "VOLUME " + imageData, "CMD " + strings.ReplaceAll(string(command), ",", ", ")} {
		if !strings.Contains(string(dockerfile), "\n"+line+"\n") {
			t.Errorf("the Dockerfile lacks %q", line)
		}
	}
	root := t.TempDir()
	layer, err := gzip.NewReader(bytes.NewReader(blob(manifest.Layers[0].Digest)))
	if err != nil {
		t.Fatal(err)
	}
	each(t, layer, func(h *tar.Header, data []byte) {
		name := filepath.Join(root, h.Name)
		switch h.Typeflag {
		case tar.TypeSymlink:
			if err := os.Symlink(h.Linkname, name); err != nil {
				t.Fatal(err)
			}
			return
		case tar.TypeDir:
			if err := os.MkdirAll(name, 0o755); err != nil {
				t.Fatal(err)
			}
		default:
			write(t, name, data)
		}
		if err := os.Chmod(name, h.FileInfo().Mode()); err != nil {
			t.Fatal(err)
		}
	})
	runIn(t, root, 1000690000, 0, config.Config.Cmd) // a user as platforms choose them
}

// runIn runs the program of a root as a user. The root is read-only except for the data.
func runIn(t *testing.T, root string, uid, gid int, args []string) {
	t.Helper()
	copyLibraries(t, root)
	data := t.TempDir()
	for _, dir := range []string{data, filepath.Join(root, imageData)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(data, 0, gid); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(data, 0o770); err != nil {
		t.Fatal(err)
	}
	const enter = `mount --bind "$0" "$0" && mount --bind "$1" "$0` + imageData + `" && mount -o remount,ro,bind "$0" && user=$2 && root=$0 && shift 2 && exec chroot --userspec=$user --groups= "$root" /usr/bin/larder "$@"`
	in := func(args ...string) *exec.Cmd {
		return exec.Command("unshare", append([]string{"--mount", "sh", "-c", enter, root, data, fmt.Sprintf("%d:%d", uid, gid)}, args...)...)
	}
	if out, err := in("--version").CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "larder ") {
		t.Fatalf("--version: %v\n%s", err, out)
	}
	port := strconv.Itoa(proctest.Port(t))
	server := proctest.New(t, "the server", func() *exec.Cmd {
		return in(append(args, "--bind-address=127.0.0.1", "--secure-port="+port, "--unsafe-no-fsync")...)
	})
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	server.Await(t, "ready after")
	info, err := os.Stat(filepath.Join(data, "admin.kubeconfig"))
	if err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("the administrator's kubeconfig: %v, %v", info, err)
	}
	if err := server.Terminate(t); err != nil {
		t.Error(err)
	}
}

// copyLibraries copies the libraries of a program that is not linked statically into root.
func copyLibraries(t *testing.T, root string) {
	t.Helper()
	out, err := exec.Command("ldd", filepath.Join(root, "usr/bin/larder")).CombinedOutput()
	if err != nil {
		return // it needs none
	}
	for _, library := range regexp.MustCompile(`(/\S+) \(0x`).FindAllSubmatch(out, -1) {
		data, err := os.ReadFile(string(library[1]))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(root, string(library[1])), data)
		if err := os.Chmod(filepath.Join(root, string(library[1])), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// standIns returns a directory with the test binary under the names of a release's programs.
func standIns(t *testing.T) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"larder", "kubectl"} {
		if err := os.Symlink(program, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestPackagesAreReproducible checks that the same program gives the same files and sums.
func TestPackagesAreReproducible(t *testing.T) {
	programs := standIns(t)
	var sums [2]bytes.Buffer
	for i := range sums {
		p, err := newProduct("linux/amd64", programs, texts{man: []byte("man"), license: []byte("license")}, time.Unix(1e9, 0).UTC())
		if err != nil {
			t.Fatal(err)
		}
		p.level = gzip.BestSpeed
		p.index = make(envtestIndex)
		dir := t.TempDir()
		if err := p.write(dir, &sums[i]); err != nil {
			t.Fatal(err)
		}
		check := exec.Command("sha256sum", "-c")
		check.Dir, check.Stdin = dir, bytes.NewReader(sums[i].Bytes())
		if out, err := check.CombinedOutput(); err != nil || strings.Count(string(out), ": OK\n") != 5 {
			t.Errorf("sha256sum -c: %v\n%s", err, out)
		}
	}
	if sums[0].String() != sums[1].String() {
		t.Errorf("the same program gave\n%s\n%s", &sums[0], &sums[1])
	}
}

// TestImageOfAllPlatforms checks that the archive for registries has each platform's image under one name, and that
// every blob has its digest.
func TestImageOfAllPlatforms(t *testing.T) {
	programs := standIns(t)
	var products []*product
	for _, of := range []string{"linux/amd64", "linux/arm64"} {
		p, err := newProduct(of, programs, texts{}, time.Unix(1e9, 0).UTC())
		if err != nil {
			t.Fatal(err)
		}
		p.level = gzip.BestSpeed
		products = append(products, p)
	}
	archive := imageOfAll(products)
	files := make(map[string][]byte)
	each(t, bytes.NewReader(archive), func(h *tar.Header, data []byte) { files[h.Name] = data })
	get := func(d descriptor, v any) {
		t.Helper()
		blob := files[d.path()]
		if sum := fmt.Sprintf("sha256:%x", sha256.Sum256(blob)); sum != d.Digest || len(blob) != d.Size {
			t.Fatalf("%s is %s of %d bytes", d.Digest, sum, len(blob))
		}
		if v != nil {
			parse(t, blob, v)
		}
	}
	type index struct{ Manifests []descriptor }
	var outer, inner index
	parse(t, files["index.json"], &outer)
	if len(outer.Manifests) != 1 || outer.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != products[0].imageVersion() {
		t.Fatalf("the archive names %+v", outer.Manifests)
	}
	get(outer.Manifests[0], &inner)
	for i, p := range products {
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		var config struct{ OS, Architecture string }
		get(inner.Manifests[i], &manifest)
		get(manifest.Config, &config)
		get(manifest.Layers[0], nil)
		if of := inner.Manifests[i].Platform; *of != (platform{p.os, p.arch}) || config.OS != p.os || config.Architecture != p.arch {
			t.Errorf("image %d: platform %+v, configuration %+v; want %s/%s", i, of, config, p.os, p.arch)
		}
	}
}

// testSBOM checks that the document lists the modules in the program.
func testSBOM(t *testing.T, p *product) {
	text := p.sbom()
	var document struct {
		SPDXVersion   string
		Packages      []struct{ SPDXID, Name, VersionInfo string }
		Relationships []struct{ SPDXElementID, RelationshipType, RelatedSPDXElement string }
	}
	parse(t, text, &document)
	ids := make(map[string]string)
	for _, component := range document.Packages {
		ids[component.Name] = component.SPDXID
	}
	for _, module := range []string{modulePath, "stdlib", "k8s.io/kubernetes", "go.etcd.io/etcd/server/v3", "github.com/valyala/fasthttp"} {
		if ids[module] == "" {
			t.Errorf("%s is missing among %d packages", module, len(document.Packages))
		}
	}
	if document.SPDXVersion != "SPDX-2.3" || len(document.Relationships) != len(document.Packages) || len(ids) != len(document.Packages) {
		t.Errorf("document of %d packages with %d relationships", len(document.Packages), len(document.Relationships))
	}
}

// TestDebVersionsAreOrdered checks that dpkg orders the versions of Debian packages as releases follow each other.
func TestDebVersionsAreOrdered(t *testing.T) {
	last := ""
	for _, version := range []string{"v0.0.0-20260101000000-abcdef", "v0.1.0-alpha.1", "v0.1.0-rc.1", "v0.1.0", "v0.1.1-rc.1", "v0.1.1", "v0.10.0"} {
		next := (&product{version: version}).debVersion()
		if last != "" {
			output(t, "dpkg", "--compare-versions", last, "lt", next)
		}
		last = next
	}
}

func write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func parse(t *testing.T, data []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%v in %.200q", err, data)
	}
}

// each calls f for every file of an archive.
func each(t *testing.T, r io.Reader, f func(*tar.Header, []byte)) {
	t.Helper()
	for archive := tar.NewReader(r); ; {
		header, err := archive.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		f(header, data)
	}
}
