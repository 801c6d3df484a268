package main

import (
	"bytes"
	"crypto/md5"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Files that the package contains unchanged.
var (
	//go:embed packaging/larder.service
	unit []byte
	//go:embed packaging/default
	defaults []byte
	//go:embed packaging/postinst
	postinst []byte
	//go:embed packaging/prerm
	prerm []byte
	//go:embed packaging/postrm
	postrm []byte
	//go:embed packaging/overrides
	overrides []byte
	//go:embed packaging/copyright
	copyright []byte
)

const maintainer = "The Larder Authors <packages@larder.invalid>"

// debVersion returns the version as Debian orders it: 1.2.3~rc.1-1 comes before 1.2.3-1.
func (p *product) debVersion() string {
	core, pre, _ := strings.Cut(strings.TrimPrefix(p.version, "v"), "-")
	if pre != "" {
		core += "~" + strings.ReplaceAll(pre, "-", ".")
	}
	return core + "-1"
}

func (p *product) debName() string {
	return "larder_" + p.debVersion() + "_" + p.arch + ".deb"
}

func (p *product) debFiles() []file {
	changelog := fmt.Sprintf("larder (%s) unstable; urgency=medium\n\n  * Release of %s.\n\n -- %s  %s\n",
		p.debVersion(), p.version, maintainer, p.time.Format(time.RFC1123Z))
	return []file{
		{name: "./usr/bin/larder", mode: 0o755, data: p.program},
		{name: "./lib/systemd/system/larder.service", mode: 0o644, data: unit},
		{name: "./etc/default/larder", mode: 0o644, data: defaults},
		{name: "./usr/share/man/man1/larder.1.gz", mode: 0o644, data: p.gzip(p.man)},
		{name: "./usr/share/bash-completion/completions/larder", mode: 0o644, data: p.bash},
		{name: "./usr/share/zsh/vendor-completions/_larder", mode: 0o644, data: p.zsh},
		{name: "./usr/share/fish/vendor_completions.d/larder.fish", mode: 0o644, data: p.fish},
		{name: "./usr/share/doc/larder/copyright", mode: 0o644, data: copyright},
		{name: "./usr/share/doc/larder/changelog.Debian.gz", mode: 0o644, data: p.gzip([]byte(changelog))},
		{name: "./usr/share/lintian/overrides/larder", mode: 0o644, data: overrides},
	}
}

// deb returns the Debian package. It does not enable the service: the administrator starts it.
func (p *product) deb() []byte {
	files := p.debFiles()
	var sums bytes.Buffer
	size := 0
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	for _, f := range files {
		size += (len(f.data) + 1023) / 1024
		fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(f.data), strings.TrimPrefix(f.name, "./"))
	}
	data := tarOf(files, p.time)
	control := tarOf([]file{
		{name: "./control", mode: 0o644, data: fmt.Appendf(nil, `Package: larder
Version: %s
Architecture: %s
Maintainer: %s
Installed-Size: %d
Section: admin
Priority: optional
Homepage: https://github.com/larder-io/larder
Description: Kubernetes API server built around its watch cache
 Larder keeps every object encoded and ready to serve, so that a GET, LIST or
 WATCH costs a copy instead of a decode and an encode. It behaves as
 kube-apiserver.
`, p.debVersion(), p.arch, maintainer, size)},
		{name: "./conffiles", mode: 0o644, data: []byte("/etc/default/larder\n")},
		{name: "./md5sums", mode: 0o644, data: sums.Bytes()},
		{name: "./postinst", mode: 0o755, data: postinst},
		{name: "./prerm", mode: 0o755, data: prerm},
		{name: "./postrm", mode: 0o755, data: postrm},
	}, p.time)
	var out bytes.Buffer
	out.WriteString("!<arch>\n")
	for _, member := range []file{
		{name: "debian-binary", data: []byte("2.0\n")},
		{name: "control.tar.gz", data: p.gzip(control)},
		{name: "data.tar.gz", data: p.gzip(data)},
	} {
		fmt.Fprintf(&out, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", member.name, p.time.Unix(), 0, 0, "100644", len(member.data))
		out.Write(member.data)
		if len(member.data)%2 == 1 {
			out.WriteByte('\n')
		}
	}
	return out.Bytes()
}
