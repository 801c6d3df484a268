package storage

import (
	"fmt"
	"path"
	"strings"

	"k8s.io/apiserver/pkg/storage"
)

// Scope is the scope of a read: one namespace or, if that is empty, the whole resource. If Name is not
// empty, it is one object.
type Scope struct {
	Namespace, Name string

	one bool // the scope is one key, even if Name is empty
}

// single reports whether the scope is one key.
func (s Scope) single() bool { return s.one || s.Name != "" }

// key is the object's key within the resource.
func (s Scope) key() string {
	if s.Namespace == "" {
		return s.Name
	}
	return s.Namespace + "/" + s.Name
}

// prefix returns the prefix of the keys of the scope's objects.
func (s Scope) prefix() string {
	if s.Namespace == "" {
		return ""
	}
	return s.Namespace + "/"
}

// check rejects the namespaces "." and "..", which would change the path of a key (apiserver pkg/storage/interfaces.go,
// PrepareKey).
func (s Scope) check(l layout) error {
	if s.Namespace != "." && s.Namespace != ".." {
		return nil
	}
	key := l.resource + "/" + s.Namespace
	if s.Name != "" {
		key += "/" + s.Name
	}
	return fmt.Errorf("invalid key: %q", key)
}

// layout has the key prefixes of a resource.
//
// Invariant: root ends in "/" and starts with base.
type layout struct {
	base     string // start of every key: "/registry/"
	resource string // start of the keys of storage.Interface: "/pods"
	root     string // start of this resource's keys: "/registry/pods/"
}

// newLayout joins prefixes as apiserver pkg/storage/etcd3/store.go does.
func newLayout(prefix, resource string) (layout, error) {
	if !strings.HasPrefix(resource, "/") || resource == "/" {
		return layout{}, fmt.Errorf("registry: bad resource prefix %q", resource)
	}
	base := strings.TrimSuffix(path.Join("/", prefix), "/") + "/"
	root := base + strings.Trim(resource, "/") + "/"
	return layout{base: base, resource: resource, root: root}, nil
}

// full returns the store's key for a key of storage.Interface.
func (l layout) full(key string, recursive bool) (string, error) {
	key, err := storage.PrepareKey(l.resource, key, recursive)
	if err != nil {
		return "", err
	}
	return l.base + strings.TrimPrefix(key, "/"), nil
}

// rest returns the key of an object, or of a namespace, within the resource.
func (l layout) rest(full string) string { return strings.TrimPrefix(full, l.root) }
