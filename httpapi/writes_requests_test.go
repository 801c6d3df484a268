package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"
)

// writeRequest is a request that is sent to both sides of a comparison. In its path and body «uid:x» and «rv:x» stand
// for the UID and resourceVersion of the object x in the side's store.
type writeRequest struct {
	kind      *writtenKind
	namespace string
	key       string // of the object
	protocol  string
	method    string
	path      string
	header    map[string]string
	tree      any    // of the body; nil if text is all of it
	form      string // of the body: json, yaml, protobuf
	text      string
	damage    func([]byte) []byte
	admission admissionScript
}

// String describes the request in a failure.
func (r *writeRequest) String() string {
	tree, _ := json.Marshal(r.tree)
	return fmt.Sprintf("%s %s %s %q as %s: %s %.2000s, admission %+v\n", r.protocol, r.method, r.path, r.header, r.form, tree, r.text, r.admission)
}

// resolve replaces placeholders by values of a side's store.
func (s *writesSide) resolve(k *writtenKind, text string) string {
	for _, what := range []string{"uid", "rv"} {
		for {
			before, rest, ok := strings.Cut(text, "«"+what+":")
			if !ok {
				break
			}
			key, after, _ := strings.Cut(rest, "»")
			value := "0"
			if _, metadata, revision := s.stored(key); metadata != nil && what == "uid" {
				value = string(metadata.GetUID())
			} else if metadata != nil {
				value = fmt.Sprint(revision)
			}
			text = before + value + after
		}
	}
	return text
}

// body is the body of the request for one side.
func (r *writeRequest) body(s *writesSide) []byte {
	if r.tree == nil {
		return []byte(s.resolve(r.kind, r.text))
	}
	if r.mayCreate(s) {
		r.clearDeletion()
	}
	text, err := json.Marshal(r.tree)
	if err != nil {
		panic(err)
	}
	if r.damage != nil { // damage may cut a UID short, which must then be the same for both sides
		text = ownUID.ReplaceAll(text, []byte("00000000-0000-4000-8000-000000000000"))
	}
	text = []byte(s.resolve(r.kind, string(text)))
	switch r.form {
	case "yaml":
		if text, err = yaml.JSONToYAML(text); err != nil {
			panic(err)
		}
	case "protobuf":
		if object := r.kind.decoded(json.RawMessage(text)); object != nil {
			text = encodedInProtobuf(object)
		}
	}
	if r.damage != nil {
		text = r.damage(text)
	}
	return text
}

// mayCreate reports whether the request is a PUT or an apply that may create its object.
func (r *writeRequest) mayCreate(s *writesSide) bool {
	if r.method != http.MethodPut && !strings.HasPrefix(r.header["Content-Type"], "application/apply-patch") {
		return false
	}
	stored, _, _ := s.stored(r.key)
	return stored == nil || r.admission.races > 0
}

// clearDeletion removes what Larder ignores and upstream keeps if the request creates the object:
// TestCreatesIgnoreDeletion.
func (r *writeRequest) clearDeletion() {
	if tree, ok := r.tree.(map[string]any); ok {
		if metadata, ok := tree["metadata"].(map[string]any); ok {
			delete(metadata, "deletionTimestamp")
			delete(metadata, "deletionGracePeriodSeconds")
		}
	}
}

var ownUID = regexp.MustCompile(`«uid:[^»]*»`)

var mediaOf = map[string]string{"json": "application/json", "yaml": "application/yaml", "protobuf": "application/vnd.kubernetes.protobuf"}

// requests draws requests of one sequence.
type requests struct {
	*rapid.T
	kinds     []*writtenKind
	namespace string
}

// one reports true once in so many times.
func (t requests) one(of int, name string) bool {
	var numbers [100]int // rapid draws items of lists evenly, and numbers unevenly
	for i := range numbers {
		numbers[i] = i
	}
	return rapid.SampledFrom(numbers[:of]).Draw(t.T, name) == of-1
}

func pick[V any](t requests, name string, of ...V) V { return rapid.SampledFrom(of).Draw(t.T, name) }

// draw draws a request.
func (t requests) draw(first bool) *writeRequest {
	r := &writeRequest{kind: pick(t, "kind", t.kinds...), namespace: t.namespace, header: make(map[string]string), form: "json"}
	r.protocol = pick(t, "protocol", "HTTP/1.1", "HTTP/2.0")
	r.header["Authorization"] = "Bearer " + pick(t, "user", "alice", "alice", "alice", "alice", "alice", "alice", "alice", "meta", "meta", "reader", "reader", "lean", "lean", "updater", "updater", "mallory")
	if t.one(2, "accepts") {
		r.header["Accept"] = pick(t, "accept", accepted...)
	} else if t.one(15, "accepts oddly") {
		r.header["Accept"] = pick(t, "accept", accepts...)
	}
	r.header["User-Agent"] = pick(t, "agent", "kubectl/v1.36", "kubectl/v1.36", "other (linux) x/y", "", "/", strings.Repeat("long", 100), "tab\tand é/1", "%s")
	if r.admission = t.drawAdmission(); first {
		r.header["Authorization"], r.admission.refuse = "Bearer alice", ""
		delete(r.header, "Accept")
	}
	name := t.name(r.kind)
	r.key = r.kind.key(t.namespace, name)
	verb := "create"
	if !first {
		verb = pick(t, "verb", "create", "create", "update", "update", "update", "merge", "merge", "merge", "json", "json", "strategic", "strategic", "strategic", "apply", "apply", "apply", "delete", "delete", "deletecollection", "get", "subcreate", "odd")
	}
	query := make(url.Values)
	if !first {
		t.options(query, verb)
	}
	path := r.kind.collection(t.namespace) + "/" + name
	if len(r.kind.subresources) > 0 && t.one(3, "subresource") {
		path += "/" + pick(t, "of", r.kind.subresources...)
	}
	switch verb {
	case "create":
		r.method, path = "POST", r.kind.collection(t.namespace)
		t.object(r, name, first)
	case "update":
		r.method = "PUT"
		t.object(r, name, false)
		if strings.HasSuffix(path, "/scale") && !t.one(4, "whole") {
			r.tree = t.scale(name)
		}
	case "delete", "deletecollection":
		r.method = "DELETE"
		if verb == "deletecollection" {
			path = r.kind.collection(t.namespace)
		}
		t.deletion(r, name)
	case "get":
		r.method = "GET"
	case "odd":
		r.method = pick(t, "method", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "HEAD")
		path = pick(t, "where", path, path+"/none", r.kind.collection(t.namespace), r.kind.collection("none-such"), r.kind.collection(t.namespace)+"/Bad_Name", path+"/status")
		t.object(r, name, false)
	case "subcreate":
		r.method = "POST"
		t.subresource(r, name, &path)
	default:
		r.method = "PATCH"
		t.patch(r, verb, name, path)
	}
	r.path = path
	if len(query) > 0 {
		r.path += "?" + query.Encode()
	}
	if !first {
		t.wrong(r)
	}
	return r
}

var accepted = []string{
	"application/json", "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf", "application/yaml", "application/json;pretty=1", "*/*",
	"application/vnd.kubernetes.protobuf, application/json", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
	"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/yaml;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
}

var accepts = []string{
	"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v1;g=meta.k8s.io;includeObject=Odd",
	"text/html", "application/json;as=Odd;v=v1;g=meta.k8s.io", "application/cbor", ";", "application/json;as=Table;v=v9;g=meta.k8s.io,application/yaml",
}

func (t requests) name(k *writtenKind) string {
	name := pick(t, "name", "a", "a", "a", "a", "a", "b")
	if k.global {
		name = t.namespace + "-" + name
	}
	return name
}

// options sets options in the query.
func (t requests) options(query url.Values, verb string) {
	add := func(of int, name string, values ...string) {
		if t.one(of, name) {
			query.Add(name, pick(t, name, values...))
		}
	}
	add(3, "fieldManager", "m1", "m2", "m1", "kubectl", "m1", "m2", "", "bad\x01", strings.Repeat("m", 129))
	if verb == "apply" && !query.Has("fieldManager") && !t.one(10, "nameless") {
		query.Set("fieldManager", pick(t, "manager", "m1", "m2"))
	}
	add(4, "fieldValidation", "Strict", "Warn", "Ignore", "Warn", "Ignore", "Ignore", "", "Odd")
	add(8, "dryRun", "All", "All", "", "None", "all")
	if verb == "apply" {
		add(2, "force", "true", "false", "1", "odd")
	} else {
		add(30, "force", "true")
	}
	add(25, "timeout", "30s", "1h", "0", "-1s", "soon", "")
	add(12, "pretty", "true", "1", "false", "odd")
	add(30, "dryRun", "All", "None")
	add(40, "fieldManager", "m3")
	add(30, "unknown", "x")
	add(30, "resourceVersion", "1", "x")
	if strings.HasPrefix(verb, "delete") {
		add(5, "gracePeriodSeconds", "0", "5", "-1", "x")
		add(5, "propagationPolicy", "Foreground", "Orphan", "Background", "Odd")
		add(6, "orphanDependents", "true", "false", "false", "x")
		add(12, "ignoreStoreReadErrorWithClusterBreakingPotential", "true", "false")
	}
	if verb == "deletecollection" {
		query.Set("labelSelector", pick(t, "selected", "a=b", "a", "!a", "a=b,c", "!!", ""))
		add(4, "fieldSelector", "metadata.name=a", "metadata.name!=a", "spec.odd=x", "=")
		add(8, "limit", "1", "x")
		add(10, "continue", "odd")
		add(10, "resourceVersionMatch", "Exact", "NotOlderThan", "Odd")
	}
}

const ownEntry = `{"manager":"m1","operation":"Update","apiVersion":"v1","time":"2020-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:k":{}},"f:metadata":{"f:labels":{"f:a":{}}}}}`

// metadataFields are fields of any object's metadata.
func metadataFields(key string) []field {
	return []field{
		values("labels", `{"a":"b"}|{"a":"b","c":"d"}|null||{"a":"bad value!"}|{"a":null}|{"a":1}|{"$patch":"replace","e":"f"}`), values("labels.a", `"b"|"c"|null`),
		values("annotations", `{"a":"b"}|{"x":"<&>\u2028"}|null`), values("annotations.n", `"1"|"2"|null`),
		values("finalizers", `["example.com/f"]|["example.com/f","example.com/g"]|[]|null||["bad finalizer"]`), values("$deleteFromPrimitiveList/finalizers", `||["example.com/f"]|"x"`), values("$setElementOrder/finalizers", `||["example.com/g","example.com/f"]`),
		values("ownerReferences", `[{"apiVersion":"v1","kind":"Pod","name":"o","uid":"11111111-0000-0000-0000-000000000000"}]|[{"apiVersion":"v1","kind":"Pod","name":"o","uid":"11111111-0000-0000-0000-000000000000"},{"apiVersion":"v1","kind":"Pod","name":"o","uid":"11111111-0000-0000-0000-000000000000"}]|[{"apiVersion":"v1","kind":"Pod","name":"o","uid":"11111111-0000-0000-0000-000000000000"},{"apiVersion":"v1","kind":"Pod","name":"o","uid":"11111111-0000-0000-0000-000000000000","controller":true},{"apiVersion":"v1","kind":"Pod","name":"p","uid":"33333333-0000-0000-0000-000000000000","controller":true}]||[{"name":"o"}]|[{"$patch":"delete","uid":"11111111-0000-0000-0000-000000000000"}]|null`),
		values("managedFields", `[]|[{}]|null|[`+ownEntry+`]|[`+ownEntry+`,{"manager":"m2","operation":"Apply","apiVersion":"v1","time":"2020-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{"f:a":{}}}}}]||[{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV2"}]|[{"manager":"m","operation":"Guess","apiVersion":"v1","fieldsType":"FieldsV1"}]|[{"manager":"m2","operation":"Update","apiVersion":"none/v9","time":"2020-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:x":{}}}]|[{"manager":"m2","operation":"Update","apiVersion":"v1","subresource":"status","time":"2020-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:phase":{}}}}]|[{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"odd":1}}]|"x"`),
		values("resourceVersion", `"«rv:`+key+`»"|"«rv:`+key+`»"||"1"|"0"|""|"x"|7|null`), values("uid", `"«uid:`+key+`»"||"44444444-0000-0000-0000-000000000000"|""|null`),
		values("namespace", `""||"none-such"`), values("name", `||"other"|""|"Bad_Name"|null`), values("generateName", `"gen-"||"Bad_"`), values("generation", `7||"x"`), values("selfLink", `"/x"`),
		values("uid", `"«uid:`+key+`»"||"44444444-0000-0000-0000-000000000000"`), values("name", `||"other"`), values("namespace", `||"other"`),
		values("creationTimestamp", `null|"2020-01-01T00:00:00Z"||"soon"`), values("deletionTimestamp", `null|"2020-01-01T00:00:00Z"`), values("deletionGracePeriodSeconds", `5`), values("label", `||{"a":"b"}`), values("clusterName", `||"x"`),
	}
}

// object makes the body an object.
func (t requests) object(r *writeRequest, name string, good bool) {
	tree := r.kind.base(name)
	key := r.kind.key(t.namespace, name)
	switch pick(t, "form", "json", "json", "yaml", "protobuf") {
	case "yaml":
		r.form = "yaml"
	case "protobuf":
		r.form = "protobuf"
	}
	r.header["Content-Type"] = mediaOf[r.form]
	if !good || t.one(2, "more") {
		t.drawFields(r.kind.fields, tree, "", 3)
		t.drawFields(metadataFields(key), tree, "metadata.", 2)
	}
	if r.method != "POST" && t.one(3, "current") {
		set(tree, "metadata.resourceVersion", "«rv:"+key+"»")
	}
	if t.one(4, "finalizers") {
		set(tree, "metadata.finalizers", []any{"example.com/f"})
	}
	if r.method == "POST" && !good && t.one(6, "generate") {
		delete(tree["metadata"].(map[string]any), "name")
		set(tree, "metadata.generateName", "gen-")
	}
	if !good {
		t.kindOf(tree)
	}
	r.tree = local(tree, t.namespace)
}

// kindOf gives an object another kind or version, or none.
func (t requests) kindOf(tree map[string]any) {
	if t.one(3, "bare") {
		delete(tree, "apiVersion")
		delete(tree, "kind")
	}
	if t.one(15, "wrong kind") {
		tree[pick(t, "which", "apiVersion", "kind")] = pick[any](t, "what", "v1", "v2", "apps/v1", "autoscaling/v2", "Pod", "ConfigMap", "", 1, "none/v1", "a/b/c")
	}
}

// local puts the namespace into a tree.
func local(tree any, namespace string) any {
	text, err := json.Marshal(tree)
	if err != nil {
		panic(err)
	}
	return parsed(strings.ReplaceAll(string(text), "«ns»", namespace))
}

func (t requests) scale(name string) any {
	tree := map[string]any{"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": map[string]any{"name": name, "namespace": t.namespace}}
	set(tree, "spec.replicas", pick[any](t, "replicas", 1, 5, 6, -1, "x"))
	return tree
}

// deletion makes the body of a DELETE.
func (t requests) deletion(r *writeRequest, name string) {
	if t.one(5, "background") { // as old clients request it
		r.tree, r.header["Content-Type"] = map[string]any{"orphanDependents": false}, mediaOf["json"]
		return
	}
	if !t.one(2, "body") {
		return
	}
	tree := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions"}
	key := r.kind.key(t.namespace, name)
	fields := []field{
		values("gracePeriodSeconds", `0|5||-1|"x"`), values("propagationPolicy", `"Foreground"|"Orphan"|"Background"||"Odd"`), values("orphanDependents", `true|false`), values("dryRun", `["All"]|[]||["Odd"]|["All","All"]`),
		values("preconditions.uid", `"«uid:`+key+`»"||"44444444-0000-0000-0000-000000000000"`), values("preconditions.resourceVersion", `"«rv:`+key+`»"||"1"|"x"`), values("unknown", `||1`), values("ignoreStoreReadErrorWithClusterBreakingPotential", `true|false`),
		values("apiVersion", `"v1"|"meta.k8s.io/v1"|"apps/v1"||"none/v1"`), values("kind", `"DeleteOptions"||"Pod"|"CreateOptions"|""`),
	}
	t.drawFields(fields, tree, "", 3)
	t.kindOf(tree)
	r.tree, r.form = tree, pick(t, "form", "json", "json", "yaml", "protobuf")
	r.header["Content-Type"] = mediaOf[r.form]
}

// subresource makes the request one that creates a subresource.
func (t requests) subresource(r *writeRequest, name string, path *string) {
	*path = r.kind.collection(t.namespace) + "/" + name
	if len(r.kind.creates) == 0 {
		*path += "/status"
		t.object(r, name, false)
		return
	}
	sub := rapid.SampledFrom(sortedKeys(r.kind.creates)).Draw(t.T, "created")
	*path += "/" + sub
	tree := parsed(r.kind.creates[sub]).(map[string]any)
	if t.one(3, "odd") {
		t.drawFields(metadataFields(r.kind.key(t.namespace, name)), tree, "metadata.", 2)
		t.kindOf(tree)
	}
	r.tree = tree
	r.header["Content-Type"] = "application/json"
}

// wrong damages some requests: their bodies or their content types.
func (t requests) wrong(r *writeRequest) {
	if t.one(25, "content type") {
		r.header["Content-Type"] = pick(t, "type", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/json; charset=utf-8", "text/plain", "", "application/merge-patch+json", "application/cbor", "application/apply-patch+yaml", ";;")
	}
	if !t.one(15, "damage") {
		return
	}
	r.damage = pick(t, "how", []func([]byte) []byte{
		func(b []byte) []byte { return b[:len(b)/2] },
		func(b []byte) []byte { return nil },
		func(b []byte) []byte { return append(b, " x"...) },
		func(b []byte) []byte { return append(b, "\n\n"...) },
		func(b []byte) []byte { return append(b, '}') },
		func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"metadata":{`), []byte(`"metadata":{"labels":{"a":"x","a":"y"},`), 1)
		},
		func(b []byte) []byte { return bytes.Replace(b, []byte(`{`), []byte(`{"metadata":{"name":"b"},`), 1) },
		func(b []byte) []byte {
			return bytes.Replace(b, []byte(`{`), []byte(`{"Metadata":{},"spec":{},"x":{"y":[1]},`), 1)
		},
		func(b []byte) []byte { return bytes.Replace(b, []byte(`{`), []byte("{\"\xff\":\"\x00\","), 1) },
		func(b []byte) []byte {
			return bytes.Replace(b, []byte(`{`), []byte(`{"deep":`+strings.Repeat("[", 90)+strings.Repeat("]", 90)+`,`), 1)
		},
		func(b []byte) []byte { return append(b, bytes.Repeat([]byte(" "), maxSentBody)...) },
		func(b []byte) []byte { return append(b, bytes.Repeat([]byte(" "), maxSentBody-len(b))...) },
		func(b []byte) []byte { return []byte("null") },
		func(b []byte) []byte { return []byte("[]") },
		func(b []byte) []byte { return []byte("{}") },
		func(b []byte) []byte { return []byte(`"text"`) },
		func(b []byte) []byte { return []byte("k8s\x00\x0a\x04\x0a\x00\x12\x00") },
		func(b []byte) []byte {
			return bytes.Replace(b, []byte(`{`), []byte(`{"spec":{"replicas":1e400,"n":12345678901234567890,"f":1.50},`), 1)
		},
	}...)
}
