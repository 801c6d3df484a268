package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// file is a file of an archive. The name of a directory ends in a slash.
type file struct {
	name string
	mode int64
	data []byte
	link string // target of a symbolic link
}

// tarOf returns a tar archive of files and their parent directories, sorted by name. It panics if a tar
// header cannot describe one of them.
func tarOf(files []file, made time.Time) []byte {
	all := slices.Clone(files)
	seen := make(map[string]bool)
	for _, f := range files {
		seen[f.name] = true
	}
	for _, f := range files {
		for i := range len(f.name) {
			if dir := f.name[:i+1]; f.name[i] == '/' && !seen[dir] {
				seen[dir] = true
				all = append(all, file{name: dir, mode: 0o755})
			}
		}
	}
	slices.SortFunc(all, func(a, b file) int { return strings.Compare(a.name, b.name) })
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range all {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: made, Format: tar.FormatGNU}
		switch {
		case strings.HasSuffix(f.name, "/"):
			header.Typeflag = tar.TypeDir
		case f.link != "":
			header.Typeflag, header.Linkname = tar.TypeSymlink, f.link
		default:
			header.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(header); err != nil {
			panic(err)
		}
		_, _ = w.Write(f.data) // writing to memory cannot fail
	}
	_ = w.Close()
	return out.Bytes()
}

// gzip compresses without a name or time.
func (p *product) gzip(data []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, p.level) // fails only for invalid levels
	_, _ = w.Write(data)                       // writing to memory cannot fail
	_ = w.Close()
	return out.Bytes()
}

// archive returns the archive for systems without packages.
func (p *product) archive() []byte {
	dir := "larder_" + strings.TrimPrefix(p.version, "v") + "/"
	return p.gzip(tarOf([]file{
		{name: dir + "larder", mode: 0o755, data: p.program},
		{name: dir + "LICENSE", mode: 0o644, data: p.license},
		{name: dir + "larder.1", mode: 0o644, data: p.man},
		{name: dir + "larder.service", mode: 0o644, data: unit},
		{name: dir + "completion/larder.bash", mode: 0o644, data: p.bash},
		{name: dir + "completion/_larder", mode: 0o644, data: p.zsh},
		{name: dir + "completion/larder.fish", mode: 0o644, data: p.fish},
	}, p.time))
}

// etcdScript is the file etcd in the archive for envtest. Programs that unpack the archive skip links, and a second
// copy of larder would make the archive two thirds larger.
const etcdScript = `#!/bin/sh
exec "${0%/*}/kube-apiserver" etcd "$@"
`

// envtestIndex lists the archives for envtest, by version of Kubernetes and by name.
type envtestIndex map[string]map[string]envtestArchive

type envtestArchive struct {
	Hash     string `json:"hash"` // SHA-512
	SelfLink string `json:"selfLink"`
}

func (p *product) envtestName() string {
	return fmt.Sprintf("envtest-%s-%s-%s.tar.gz", p.kubernetes, p.os, p.arch)
}

// envtest returns the archive that setup-envtest and controller-runtime fetch, and adds it to the index.
func (p *product) envtest() []byte {
	const dir = "controller-tools/envtest/"
	data := p.gzip(tarOf([]file{
		{name: dir + "kube-apiserver", mode: 0o755, data: p.program},
		{name: dir + "etcd", mode: 0o755, data: []byte(etcdScript)},
		{name: dir + "kubectl", mode: 0o755, data: p.kubectl},
	}, p.time))
	if p.index[p.kubernetes] == nil {
		p.index[p.kubernetes] = make(map[string]envtestArchive)
	}
	p.index[p.kubernetes][p.envtestName()] = envtestArchive{fmt.Sprintf("%x", sha512.Sum512(data)), p.url + "/" + p.envtestName()}
	return data
}

func (i envtestIndex) yaml() []byte {
	data, err := yaml.Marshal(map[string]envtestIndex{"releases": i})
	if err != nil {
		panic(err) // cannot happen for strings
	}
	return data
}
