package main

import (
	"crypto/sha512"
	"fmt"

	"sigs.k8s.io/yaml"
)

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
