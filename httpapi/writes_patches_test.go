package httpapi

import (
	"maps"
	"slices"
	"strings"

	"pgregory.net/rapid"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// patch makes the body a patch.
func (t requests) patch(r *writeRequest, kind, name, path string) {
	key := r.kind.key(t.namespace, name)
	switch kind {
	case "json":
		r.header["Content-Type"] = "application/json-patch+json"
		r.tree = local(t.operations(r.kind, key), t.namespace)
		return
	case "apply":
		r.header["Content-Type"] = "application/apply-patch+yaml"
		r.form = pick(t, "form", "json", "yaml")
		t.applied(r, name, key, path)
		return
	case "merge":
		r.header["Content-Type"] = "application/merge-patch+json"
	case "strategic":
		r.header["Content-Type"] = "application/strategic-merge-patch+json"
	}
	tree := make(map[string]any)
	if strings.HasSuffix(path, "/scale") {
		tree["spec"] = map[string]any{"replicas": pick[any](t, "replicas", 1, 4, 5, -1, nil, "x")}
	} else {
		t.drawFields(r.kind.fields, tree, "", 3)
	}
	t.drawFields(metadataFields(key), tree, "metadata.", 2)
	if t.one(10, "identity") {
		tree["apiVersion"], tree["kind"] = r.kind.apiVersion(), r.kind.kind
		t.kindOf(tree)
	}
	if t.one(15, "directive") {
		set(tree, pick(t, "at", "$patch", "metadata.$patch", "spec.$patch", "spec.$retainKeys", "$retainKeys", "$odd"), pick[any](t, "directive", "replace", "delete", "merge", "odd", []any{"metadata"}, 1))
	}
	r.tree = local(tree, t.namespace)
}

// applied makes the body an applied configuration.
func (t requests) applied(r *writeRequest, name, key, path string) {
	tree := map[string]any{"apiVersion": r.kind.apiVersion(), "kind": r.kind.kind, "metadata": map[string]any{"name": name}}
	switch {
	case strings.HasSuffix(path, "/scale"):
		tree = t.scale(name).(map[string]any)
	case t.one(2, "whole"):
		tree = r.kind.base(name)
		fallthrough
	default:
		t.drawFields(r.kind.fields, tree, "", 3)
	}
	if !strings.HasSuffix(path, "/scale") && t.one(2, "metadata") {
		t.drawFields(metadataFields(key), tree, "metadata.", 2)
	}
	if t.one(15, "identity") {
		t.kindOf(tree)
	}
	r.tree = local(tree, t.namespace)
}

// operations returns the operations of a JSON patch.
func (t requests) operations(k *writtenKind, key string) any {
	all := []any{}
	pointer := func(path string) string { return "/" + strings.ReplaceAll(path, ".", "/") }
	for range rapid.IntRange(0, 4).Draw(t.T, "operations") {
		fields := k.fields
		prefix := ""
		if t.one(2, "in metadata") {
			fields, prefix = metadataFields(key), "/metadata"
		}
		path, value := t.drawFrom(fields)
		op := map[string]any{
			"op":   pick(t, "op", "add", "add", "add", "add", "add", "add", "replace", "replace", "remove", "test", "move", "copy", "odd"),
			"path": prefix + pointer(path), "value": value,
		}
		switch {
		case op["op"] == "move" || op["op"] == "copy":
			op["from"] = pick(t, "from", "/metadata/labels", "/metadata/name", "/data/k", "/spec/containers/0", "/none", "")
			delete(op, "value")
		case op["op"] == "remove" && !t.one(4, "with a value"):
			delete(op, "value")
		}
		if t.one(12, "odd path") {
			op["path"] = pick[any](t, "path", "", "/", "/metadata/labels/a~1b", "/metadata/managedFields/0", "/metadata/managedFields/0/manager", "/spec/containers/-", "/spec/containers/7", "/spec/containers/0/image", "no/slash", "/kind", "/apiVersion", "/metadata/labels/~", 1)
		}
		all = append(all, op)
	}
	return all
}
