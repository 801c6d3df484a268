package storage

import (
	"fmt"
)

// Scope is the scope of a read: one namespace or, if that is empty, the whole resource. If Name is not
// empty, it is one object.
type Scope struct {
	Namespace, Name string

	// one says that rest is the key, even if it is not made of Namespace and Name.
	one  bool
	rest string
}

// single reports whether the scope is one key.
func (s Scope) single() bool { return s.one || s.Name != "" }

// key is the object's key within the resource.
func (s Scope) key() string {
	switch {
	case s.one:
		return s.rest
	case s.Namespace == "":
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

// check refuses the namespaces "." and "..", which would change the path of a key (apiserver
// pkg/storage/interfaces.go, PrepareKey).
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
