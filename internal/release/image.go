package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// imageUser runs the server unless the container's configuration names another user. Some platforms
// run each container as a different user of the root group. The data directory therefore belongs to that group.
const imageUser = "65532:0"

// imageData is the server's data directory in a container.
const imageData = "/var/lib/larder"

// imageFiles returns the files of the image, which are those of packaging/Dockerfile.
func (p *product) imageFiles() []file {
	return []file{
		{name: "tmp/", mode: 0o1777},
		{name: "usr/bin/larder", mode: 0o755, data: p.program},
		{name: "usr/bin/kube-apiserver", mode: 0o777, link: "larder"},
		{name: strings.TrimPrefix(imageData, "/") + "/", mode: 0o775},
	}
}

// descriptor refers to a blob, as in the OCI image format.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
}

const indexType = "application/vnd.oci.image.index.v1+json"

// blobs collects the files of an archive of images.
type blobs struct{ files []file }

func (b *blobs) add(mediaType string, data []byte) descriptor {
	sum := fmt.Sprintf("%x", sha256.Sum256(data))
	b.files = append(b.files, file{name: "blobs/sha256/" + sum, mode: 0o644, data: data})
	return descriptor{MediaType: mediaType, Digest: "sha256:" + sum, Size: len(data)}
}

func (b *blobs) addJSON(mediaType string, v any) descriptor { return b.add(mediaType, toJSON(v)) }

func toJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("release: %T is no JSON: %v", v, err))
	}
	return data
}

func (d *descriptor) path() string { return "blobs/sha256/" + strings.TrimPrefix(d.Digest, "sha256:") }

// imageVersion returns the version without the characters that a tag may not have.
func (p *product) imageVersion() string {
	return strings.ReplaceAll(strings.TrimPrefix(p.version, "v"), "+", "-")
}

// addImage adds the blobs of the image to b. It returns the descriptor of the manifest, and the entry of
// manifest.json, in which docker load finds the parts of the image.
func (p *product) addImage(b *blobs) (descriptor, map[string]any) {
	layer := tarOf(p.imageFiles(), p.time)
	labels := map[string]string{
		"org.opencontainers.image.title":    "larder",
		"org.opencontainers.image.version":  p.imageVersion(),
		"org.opencontainers.image.source":   "https://" + modulePath,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	compressed := b.add("application/vnd.oci.image.layer.v1.tar+gzip", p.gzip(layer))
	config := b.addJSON("application/vnd.oci.image.config.v1+json", map[string]any{
		"created": p.time.Format(time.RFC3339), "os": p.os, "architecture": p.arch,
		"config": map[string]any{
			"User": imageUser, "WorkingDir": imageData, "Labels": labels,
			"Entrypoint":   []string{"/usr/bin/larder"},
			"Cmd":          imageCommand(),
			"Env":          []string{"PATH=/usr/bin"},
			"ExposedPorts": map[string]any{"6443/tcp": struct{}{}},
			"Volumes":      map[string]any{imageData: struct{}{}},
		},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
		"history": []any{map[string]any{"created": p.time.Format(time.RFC3339), "created_by": "internal/release"}},
	})
	manifest := b.addJSON("application/vnd.oci.image.manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []descriptor{compressed}, "annotations": labels,
	})
	manifest.Platform = &platform{p.os, p.arch}
	return manifest, map[string]any{
		"Config": config.path(), "RepoTags": []string{"larder:" + p.imageVersion()}, "Layers": []string{compressed.path()},
	}
}

// image returns the image as an OCI image layout in a tar archive, which docker load reads, too.
func (p *product) image() []byte {
	var b blobs
	manifest, parts := p.addImage(&b)
	b.addFile("manifest.json", []any{parts})
	return b.archive(manifest, p)
}

// imageOfAll returns an archive of one image for several platforms, for registries. Its layers are the same
// as in the archives for one platform.
func imageOfAll(products []*product) []byte {
	var b blobs
	var manifests []descriptor
	for _, p := range products {
		manifest, _ := p.addImage(&b)
		manifests = append(manifests, manifest)
	}
	index := b.addJSON(indexType, map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": manifests})
	return b.archive(index, products[0])
}

func (b *blobs) addFile(name string, v any) {
	b.files = append(b.files, file{name: name, mode: 0o644, data: toJSON(v)})
}

// archive returns the archive. Its tag is the version of p and refers to named.
func (b *blobs) archive(named descriptor, p *product) []byte {
	named.Annotations = map[string]string{"org.opencontainers.image.ref.name": p.imageVersion()}
	b.addFile("oci-layout", map[string]any{"imageLayoutVersion": "1.0.0"})
	b.addFile("index.json", map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": []descriptor{named}})
	return tarOf(b.files, p.time)
}

func imageCommand() []string {
	return []string{"serve", "--data-dir=" + imageData, "--bind-address=0.0.0.0"}
}
