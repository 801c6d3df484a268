package httpapi

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/httpapi/patches"
)

// bad is a request that fails, or that gets a warning, and the expected response. The texts are those of
// kube-apiserver 1.36.
type bad struct {
	name string
	call
	code    int
	reason  metav1.StatusReason
	message string
	causes  []metav1.StatusCause
	warning []string // of a request that is fulfilled
	alone   bool     // upstream's router stands behind other filters for this one
}

const (
	maps_     = defaultNS + "configmaps"
	protobuf  = "application/vnd.kubernetes.protobuf"
	unknown   = `strict decoding error: unknown field "bogus"`
	duplicate = `{"metadata":{"name":"x"},"data":{"k":"1"},"data":{"k":"2"}}`
)

// appliedThere is a configuration to apply to the ConfigMap "there".
func appliedThere(data string) string {
	return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"there"},"data":` + data + `}`
}

func with(c call, name, value string) call {
	header := map[string]string{name: value}
	for k, v := range c.header {
		if k != name {
			header[k] = v
		}
	}
	c.header = header
	return c
}

var badBodies = []bad{
	{name: "malformed JSON", call: post(maps_, `{"metadata":{"name":"x"`), code: 400, reason: "BadRequest",
		message: `the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input ({"metadata":{"name":"x")`},
	{name: "JSON of another shape", call: post(maps_, `{"metadata":[]}`), code: 400, reason: "BadRequest",
		message: `ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal array into Go struct field ConfigMap.metadata of type v1.ObjectMeta`},
	{name: "malformed YAML", call: with(post(maps_, "metadata: [\n"), "Content-Type", "application/yaml"), code: 400, reason: "BadRequest",
		message: `the object provided is unrecognized (must be of type ConfigMap): yaml: line 1: did not find expected node content (6d657461646174613a205b0a)`},
	{name: "malformed protobuf", call: with(post(maps_, "k8s\x00garbage"), "Content-Type", protobuf), code: 400, reason: "BadRequest"},
	{name: "not protobuf", call: with(post(maps_, `{}`), "Content-Type", protobuf), code: 400, reason: "BadRequest"},
	{name: "empty body", call: with(post(maps_, ""), "Content-Type", "application/json"), code: 400, reason: "BadRequest"},
	{name: "null", call: post(maps_, `null`), code: 422, reason: "Invalid"},
	{name: "a list", call: post(maps_, `[]`), code: 400, reason: "BadRequest"},
	{name: "wrong kind", call: post(maps_, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}`), code: 400, reason: "BadRequest",
		message: `Secret in version "v1" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion`},
	{name: "wrong version", call: post(maps_, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x"}}`), code: 400, reason: "BadRequest"},
	{name: "unknown version", call: post(maps_, `{"apiVersion":"v7","kind":"ConfigMap","metadata":{"name":"x"}}`), code: 400, reason: "BadRequest"},
	{name: "unknown kind", call: post(maps_, `{"apiVersion":"v1","kind":"Bogus","metadata":{"name":"x"}}`), code: 400, reason: "BadRequest"},
	{name: "body of 3 MiB and one", call: post(maps_, strings.Repeat(" ", 3<<20+1)), code: 413, reason: "RequestEntityTooLarge",
		message: "Request entity too large: limit is 3145728"},
	{name: "object beyond the limit of its kind", call: post(maps_, `{"metadata":{"name":"x"},"data":{"k":"`+strings.Repeat("x", 1<<20+1)+`"}}`), code: 422, reason: "Invalid",
		message: `ConfigMap "x" is invalid: []: Too long: may not be more than 1048576 bytes`,
		causes:  []metav1.StatusCause{{Type: "FieldValueTooLong", Field: "[]", Message: "Too long: may not be more than 1048576 bytes"}}},
	{name: "invalid fields", call: post(deployments, `{"metadata":{"name":"x"},"spec":{"replicas":-1,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"c"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`), code: 422, reason: "Invalid"},
	{name: "content type unknown", call: with(post(maps_, `{}`), "Content-Type", "text/plain"), code: 415, reason: "UnsupportedMediaType",
		message: "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf"},
	{name: "content type malformed", call: with(post(maps_, `{}`), "Content-Type", "a/b/c;;"), code: 415, reason: "UnsupportedMediaType"},
	{name: "content type cbor", call: with(post(maps_, `{}`), "Content-Type", "application/cbor"), code: 415, reason: "UnsupportedMediaType"},
	{name: "accept unknown", call: with(post(maps_, `{"metadata":{"name":"x"}}`), "Accept", "text/html"), code: 406, reason: "NotAcceptable",
		message: "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf"},
}

var badFields = []bad{
	{name: "unknown field, Strict", call: post(maps_+"?fieldValidation=Strict", `{"metadata":{"name":"x"},"bogus":1}`), code: 400, reason: "BadRequest",
		message: `ConfigMap in version "v1" cannot be handled as a ConfigMap: ` + unknown},
	{name: "unknown field, Warn", call: post(maps_+"?fieldValidation=Warn&dryRun=All", `{"metadata":{"name":"x"},"bogus":1}`), code: 201,
		warning: []string{`299 - "unknown field \"bogus\""`}},
	{name: "unknown field by default", call: post(maps_+"?dryRun=All", `{"metadata":{"name":"x"},"bogus":1}`), code: 201,
		warning: []string{`299 - "unknown field \"bogus\""`}},
	{name: "unknown field, Ignore", call: post(maps_+"?fieldValidation=Ignore&dryRun=All", `{"metadata":{"name":"x"},"bogus":1}`), code: 201},
	{name: "duplicate field, Strict", call: post(maps_+"?fieldValidation=Strict", duplicate), code: 400, reason: "BadRequest",
		message: `ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: duplicate field "data"`},
	{name: "duplicate field, Warn", call: post(maps_+"?fieldValidation=Warn&dryRun=All", duplicate), code: 201,
		warning: []string{`299 - "duplicate field \"data\""`}},
	{name: "duplicate field, Ignore", call: post(maps_+"?fieldValidation=Ignore&dryRun=All", duplicate), code: 201},
	{name: "other validation", call: post(maps_+"?fieldValidation=Perhaps", `{"metadata":{"name":"x"}}`), code: 422, reason: "Invalid",
		message: `CreateOptions.meta.k8s.io "" is invalid: fieldValidation: Unsupported value: "Perhaps": supported values: "", "Ignore", "Strict", "Warn"`},
	{name: "unknown field in YAML, Strict", call: with(post(maps_+"?fieldValidation=Strict", "metadata: {name: x}\nbogus: 1\n"), "Content-Type", "application/yaml"), code: 400, reason: "BadRequest"},
	{name: "duplicate field in YAML, Strict", call: with(post(maps_+"?fieldValidation=Strict", "metadata: {name: x}\ndata: {k: v}\ndata: {k: w}\n"), "Content-Type", "application/yaml"), code: 400, reason: "BadRequest"},
	{name: "field of another case, Strict", call: post(maps_+"?fieldValidation=Strict", `{"metadata":{"name":"x"},"Data":{}}`), code: 400, reason: "BadRequest"},
	{name: "unknown field in update, Strict", call: put(maps_+"/there?fieldValidation=Strict", `{"metadata":{"name":"there"},"bogus":1}`), code: 400, reason: "BadRequest"},
	{name: "unknown field in merge patch, Strict", call: patch("merge-patch+json", maps_+"/there?fieldValidation=Strict", `{"bogus":1}`), code: 422, reason: "Invalid"},
	{name: "unknown field in merge patch, Warn", call: patch("merge-patch+json", maps_+"/there?dryRun=All", `{"bogus":1}`), code: 200,
		warning: []string{`299 - "unknown field \"bogus\""`}},
	{name: "unknown field in strategic patch, Strict", call: patch("strategic-merge-patch+json", maps_+"/there?fieldValidation=Strict", `{"bogus":1}`), code: 422, reason: "Invalid"},
	{name: "unknown field in JSON patch, Strict", call: patch("json-patch+json", maps_+"/there?fieldValidation=Strict", `[{"op":"add","path":"/bogus","value":1}]`), code: 422, reason: "Invalid"},
	{name: "unknown field in apply, Strict", call: patch("apply-patch+yaml", maps_+"/there?fieldManager=m&fieldValidation=Strict", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: there}\nbogus: 1\n"), code: 500,
		message: "failed to create typed patch object (/there; /v1, Kind=ConfigMap): .bogus: field not declared in schema"},
	{name: "apply of JSON, Strict", call: patch("apply-patch+yaml", maps_+"/there?dryRun=All&force=true&fieldManager=m&fieldValidation=Strict", appliedThere(`{"k":"1"}`)), code: 200},
	{name: "apply of JSON by default", call: patch("apply-patch+yaml", maps_+"/there?dryRun=All&force=true&fieldManager=m", appliedThere(`{"k":"1"}`)), code: 200},
	{name: "duplicate field in apply of JSON, Strict", call: patch("apply-patch+yaml", maps_+"/there?fieldManager=m&fieldValidation=Strict", appliedThere(`{},"data":{}`)), code: 400, reason: "BadRequest",
		message: "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  line 1: key \"data\" already set in map"},
	{name: "duplicate field in apply of JSON by default", call: patch("apply-patch+yaml", maps_+"/there?dryRun=All&force=true&fieldManager=m", appliedThere(`{},"data":{}`)), code: 200,
		warning: []string{`299 - "line 1: key \"data\" already set in map"`}},
	{name: "duplicate field in apply of JSON, Ignore", call: patch("apply-patch+yaml", maps_+"/there?dryRun=All&force=true&fieldManager=m&fieldValidation=Ignore", appliedThere(`{},"data":{}`)), code: 200},
	{name: "apply of JSON with other validation", call: patch("apply-patch+yaml", maps_+"/there?fieldManager=m&fieldValidation=Perhaps", appliedThere(`{}`)), code: 422, reason: "Invalid"},
	{name: "unknown field in apply of JSON, Warn", call: patch("apply-patch+yaml", maps_+"/there?fieldManager=m&fieldValidation=Warn", appliedThere(`{},"bogus":1`)), code: 500,
		message: "failed to create typed patch object (/there; /v1, Kind=ConfigMap): .bogus: field not declared in schema"},
	{name: "duplicate field in apply, Strict", call: patch("apply-patch+yaml", maps_+"/there?fieldManager=m&fieldValidation=Strict", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: there}\ndata: {}\ndata: {}\n"), code: 400, reason: "BadRequest"},
}

var badNames = []bad{
	{name: "bad name", call: post(maps_, `{"metadata":{"name":"A_b"}}`), code: 422, reason: "Invalid"},
	{name: "name with a slash", call: post(maps_, `{"metadata":{"name":"a/b"}}`), code: 422, reason: "Invalid"},
	{name: "name .. in the path", call: get(maps_ + "/.."), code: 400, reason: "BadRequest", alone: true},
	{name: "name with an encoded slash", call: del(maps_ + "/a%2Fb"), code: 404, reason: "NotFound"},
	{name: "name with an encoded percent", call: del(maps_ + "/a%25b"), code: 400, reason: "BadRequest"},
	{name: "name too long", call: post(maps_, `{"metadata":{"name":"`+strings.Repeat("a", 254)+`"}}`), code: 422, reason: "Invalid"},
	{name: "no name", call: post(maps_, `{}`), code: 422, reason: "Invalid"},
	{name: "bad label", call: post(maps_, `{"metadata":{"name":"x","labels":{"a b":"c"}}}`), code: 422, reason: "Invalid"},
	{name: "name of another object", call: put(maps_+"/x", `{"metadata":{"name":"y"}}`), code: 400, reason: "BadRequest",
		message: "the name of the object (y) does not match the name on the URL (x)"},
	{name: "namespace of another", call: post(maps_, `{"metadata":{"name":"x","namespace":"y"}}`), code: 400, reason: "BadRequest",
		message: "the namespace of the provided object does not match the namespace sent on the request"},
	{name: "field manager too long", call: post(maps_+"?fieldManager="+strings.Repeat("m", 129), `{"metadata":{"name":"x"}}`), code: 422, reason: "Invalid"},
	{name: "dryRun unknown", call: post(maps_+"?dryRun=Some", `{"metadata":{"name":"x"}}`), code: 422, reason: "Invalid",
		message: `CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["Some"]: supported values: "All"`},
}

var badPatches = []bad{
	{name: "patch of unknown type", call: patch("json", maps_+"/there", `{}`), code: 415, reason: "UnsupportedMediaType",
		message: "415: Unsupported Media Type"},
	{name: "patch without type", call: with(patch("json", maps_+"/there", `{}`), "Content-Type", ""), code: 415, reason: "UnsupportedMediaType"},
	{name: "apply in CBOR", call: patch("apply-patch+cbor", maps_+"/there?fieldManager=m", "x"), code: 415, reason: "UnsupportedMediaType"},
	{name: "patch of two types", call: with(patch("json", maps_+"/there", `{}`), "Content-Type", "application/merge-patch+json, application/json"), code: 415, reason: "UnsupportedMediaType",
		message: "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml"},
	{name: "malformed merge patch", call: patch("merge-patch+json", maps_+"/there", `{`), code: 400, reason: "BadRequest"},
	{name: "malformed strategic patch", call: patch("strategic-merge-patch+json", maps_+"/there", `{`), code: 400, reason: "BadRequest"},
	{name: "malformed JSON patch", call: patch("json-patch+json", maps_+"/there", `{`), code: 400, reason: "BadRequest"},
	{name: "JSON patch that is no list", call: patch("json-patch+json", maps_+"/there", `{"op":"add"}`), code: 400, reason: "BadRequest"},
	{name: "JSON patch of a number", call: patch("json-patch+json", maps_+"/there", `[1]`), code: 400, reason: "BadRequest",
		message: "error decoding patch: json: cannot unmarshal number into Go value of type handlers.jsonPatchOp"},
	{name: "JSON patch whose test fails", call: patch("json-patch+json", maps_+"/there", `[{"op":"test","path":"/data/k","value":"no"}]`), code: 422, reason: "Invalid"},
	{name: "patch of 3 MiB and one", call: patch("merge-patch+json", maps_+"/there", strings.Repeat(" ", 3<<20+1)), code: 413, reason: "RequestEntityTooLarge"},
	{name: "JSON patch of 10,001 operations", call: patch("json-patch+json", maps_+"/there", "["+strings.TrimSuffix(strings.Repeat(`{"op":"test","path":"/x","value":1},`, 10001), ",")+"]"), code: 413, reason: "RequestEntityTooLarge"},
	{name: "JSON patch whose copies double", call: patch("json-patch+json", maps_+"/there", `[{"op":"add","path":"/x","value":{"a":"`+strings.Repeat("y", 1000)+`"}}`+doublings(15)+`]`), code: 422, reason: "Invalid",
		message: "the server rejected our request due to an error in our request"},
	{name: "merge patch as deep as may be", call: patch("merge-patch+json", maps_+"/there?fieldValidation=Strict", nestedPatch(patches.MaxDepth-1, "1")), code: 422, reason: "Invalid"},
	{name: "merge patch too deep", call: patch("merge-patch+json", maps_+"/there", nestedPatch(patches.MaxDepth, "1")), code: 400, reason: "BadRequest", alone: true,
		message: "error decoding patch: nested more than 100 deep"},
	{name: "merge patch deeper than JSON may be", call: patch("merge-patch+json", maps_+"/there", nestedPatch(10000, "1")), code: 400, reason: "BadRequest", alone: true,
		message: "error decoding patch: nested more than 100 deep"},
	{name: "merge patch too deep of nothing", call: patch("merge-patch+json", maps_+"/missing", nestedPatch(patches.MaxDepth, "1")), code: 400, reason: "BadRequest", alone: true,
		message: "error decoding patch: nested more than 100 deep"},
	{name: "JSON patch as deep as may be", call: patch("json-patch+json", maps_+"/there?fieldValidation=Strict", `[{"op":"add","path":"/x","value":`+nestedPatch(patches.MaxDepth-1, "1")+`},{"op":"remove","path":"/x`+strings.Repeat("/x", 99)+`"}]`), code: 422, reason: "Invalid",
		message: "the server rejected our request due to an error in our request"},
	{name: "JSON patch too deep", call: patch("json-patch+json", maps_+"/there", `[{"op":"add","path":"/x","value":`+nestedPatch(patches.MaxDepth, "1")+`}]`), code: 400, reason: "BadRequest", alone: true,
		message: "error decoding patch: values are nested more than 100 deep"},
	{name: "JSON patch of a deep path", call: patch("json-patch+json", maps_+"/there", `[{"op":"test","path":"`+strings.Repeat(`\u002fx`, 101)+`","value":1}]`), code: 400, reason: "BadRequest", alone: true,
		message: "error decoding patch: a path leads more than 100 deep"},
	{name: "JSON patch of a value with many slashes", call: patch("json-patch+json", maps_+"/there?dryRun=All", `[{"op":"add","path":"/data","value":{"k":"`+strings.Repeat("/bin", 1000)+`"}}]`), code: 200},
	{name: "JSON patch whose moves pile up", call: patch("json-patch+json", maps_+"/there", piles(20)), code: 400, reason: "BadRequest", alone: true,
		message: "error decoding patch: the targets of all moves are more than 500 deep together"},
	{name: "patch of the wrong shape", call: patch("merge-patch+json", maps_+"/there", `{"data":[1]}`), code: 422, reason: "Invalid"},
	{name: "patch of the revision", call: patch("merge-patch+json", maps_+"/there", `{"metadata":{"resourceVersion":"1"},"data":{"k":"x"}}`), code: 409, reason: "Conflict"},
	{name: "patch of nothing", call: patch("merge-patch+json", maps_+"/missing", `{}`), code: 404, reason: "NotFound",
		message: `configmaps "missing" not found`},
	{name: "apply without manager", call: patch("apply-patch+yaml", maps_+"/there", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: there}\n"), code: 422, reason: "Invalid",
		message: `PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch`,
		causes:  []metav1.StatusCause{{Type: "FieldValueRequired", Field: "fieldManager", Message: "Required value: is required for apply patch"}}},
	{name: "malformed apply", call: patch("apply-patch+yaml", maps_+"/there?fieldManager=m", "a: ["), code: 400, reason: "BadRequest"},
	{name: "apply with managed fields", call: patch("apply-patch+yaml", maps_+"/there?fieldManager=m", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: there, managedFields: [{manager: m}]}\n"), code: 400, reason: "BadRequest"},
	{name: "apply of another kind", call: patch("apply-patch+yaml", maps_+"/there?fieldManager=m", "apiVersion: v1\nkind: Secret\nmetadata: {name: there}\n"), code: 400, reason: "BadRequest"},
	{name: "force without apply", call: patch("merge-patch+json", maps_+"/there?force=true", `{}`), code: 422, reason: "Invalid"},
}

var badTargets = []bad{
	{name: "conflict of names", call: post(maps_, `{"metadata":{"name":"there"}}`), code: 409, reason: "AlreadyExists",
		message: `configmaps "there" already exists`},
	{name: "conflict of revisions", call: put(maps_+"/there", `{"metadata":{"name":"there","resourceVersion":"1"}}`), code: 409, reason: "Conflict",
		message: `Operation cannot be fulfilled on configmaps "there": the object has been modified; please apply your changes to the latest version and try again`},
	{name: "revision of nothing", call: put(maps_+"/missing", `{"metadata":{"name":"missing","resourceVersion":"1"}}`), code: 404, reason: "NotFound"},
	{name: "revision in create", call: post(maps_, `{"metadata":{"name":"x","resourceVersion":"1"}}`), code: 500},
	{name: "update of another incarnation", call: put(maps_+"/there", `{"metadata":{"name":"there","uid":"other"}}`), code: 409, reason: "Conflict"},
	{name: "malformed delete options", call: call{method: "DELETE", path: maps_ + "/there", body: `{`}, code: 400, reason: "BadRequest"},
	{name: "delete options of another kind", call: call{method: "DELETE", path: maps_ + "/there", body: `{"apiVersion":"v1","kind":"Pod"}`}, code: 400, reason: "BadRequest"},
	{name: "delete options that exclude each other", call: call{method: "DELETE", path: maps_ + "/there", body: `{"orphanDependents":true,"propagationPolicy":"Orphan"}`}, code: 422, reason: "Invalid"},
	{name: "delete of nothing", call: del(maps_ + "/missing"), code: 404, reason: "NotFound"},
	{name: "delete by a bad selector", call: del(maps_ + "?labelSelector=!!"), code: 400, reason: "BadRequest"},
	{name: "delete by an unknown field", call: del(maps_ + "?fieldSelector=data.k%3Dv"), code: 400, reason: "BadRequest"},
	{name: "delete with limit unknown", call: del(maps_ + "?limit=x"), code: 400, reason: "BadRequest"},

	{name: "unknown resource", call: get(defaultNS + "bogus"), code: 404, reason: "NotFound",
		message: "the server could not find the requested resource"},
	{name: "unknown subresource", call: get(maps_ + "/there/bogus"), code: 404, reason: "NotFound"},
	{name: "unknown version", call: get("/api/v7/pods"), code: 404, reason: "NotFound"},
	{name: "unknown version of a group", call: get("/apis/apps/v7/deployments"), code: 404, reason: "NotFound"},
	{name: "unknown version without resource", call: get("/api/v7"), code: 404, reason: "NotFound"},
	{name: "more after the version", call: get("/version/bogus"), code: 404, reason: "NotFound"},
	{name: "unknown group", call: get("/apis/bogus.example.com/v1/things"), code: 404},
	{name: "unknown path", call: get("/bogus"), code: 404},
	{name: "unknown path, POST", call: post("/bogus", `{}`), code: 404},
	{name: "cluster resource below a namespace", call: get(defaultNS + "nodes"), code: 404, reason: "NotFound"},
	{name: "subresource of an empty name", call: get(defaultNS + "pods//status"), code: 400, reason: "BadRequest",
		message: "name must be provided"},
	{name: "watch of a subresource of an empty name", call: get(defaultNS + "pods//log?watch=1"), code: 400, reason: "BadRequest",
		message: "name must be provided"},
	{name: "status without name in an unknown format", call: with(get(defaultNS+"pods//status"), "Accept", "a/b"), code: 406, reason: "NotAcceptable"},
	{name: "patch of a status without name in an unknown format", call: patch("bogus", defaultNS+"pods//status", `{}`), code: 415, reason: "UnsupportedMediaType"},
	{name: "dry run of a proxy without name", call: del(defaultNS + "pods//proxy?dryRun=All"), code: 400, reason: "BadRequest"},
	{name: "update of a status without name", call: put(defaultNS+"pods//status", `{}`), code: 400, reason: "BadRequest"},
	{name: "patch of a scale without name", call: patch("merge-patch+json", "/apis/apps/v1/namespaces/default/deployments//scale", `{}`), code: 400, reason: "BadRequest"},
	{name: "eviction without name", call: post(defaultNS+"pods//eviction", `{}`), code: 400, reason: "BadRequest"},
	{name: "exec without name", call: post(defaultNS+"pods//exec?command=a", ``), code: 400, reason: "BadRequest"},
	{name: "proxy without name", call: del("/api/v1/nodes//proxy/x"), code: 400, reason: "BadRequest"},
	{name: "finalizer of an empty name", call: put("/api/v1/namespaces//finalize", `{}`), code: 400, reason: "BadRequest"},
	{name: "selected subresource of an empty name", call: get("/api/v1/namespaces//status?fieldSelector=metadata.name%3Ddefault"), code: 400, reason: "BadRequest", alone: true,
		message: "name must be provided"},
	{name: "selected proxy of an empty name", call: get(defaultNS + "pods//proxy?fieldSelector=metadata.name%3Dx"), code: 400, reason: "BadRequest", alone: true,
		message: "name must be provided"},
	{name: "delete of a status without name", call: del(defaultNS + "pods//status"), code: 405, reason: "MethodNotAllowed"},
	{name: "HEAD of a status without name", call: call{method: "HEAD", path: defaultNS + "pods//status"}, code: 405},
	{name: "unknown subresource of an empty name", call: get(defaultNS + "pods//bogus"), code: 404, reason: "NotFound"},
	{name: "subresource of an empty name across namespaces", call: get("/api/v1/pods//status"), code: 404, reason: "NotFound"},
	{name: "core resource below /apis", call: get("/apis//v1/configmaps"), code: 404},
	{name: "namespaced item without namespace", call: get("/api/v1/pods/x"), code: 404, reason: "NotFound"},

	{name: "create of an item", call: post(maps_+"/x", `{}`), code: 405, reason: "MethodNotAllowed",
		message: "the server does not allow this method on the requested resource"},
	{name: "create across namespaces", call: post("/api/v1/configmaps", `{"metadata":{"name":"x"}}`), code: 405, reason: "MethodNotAllowed"},
	{name: "update of a collection", call: put(maps_, `{}`), code: 405, reason: "MethodNotAllowed"},
	{name: "patch of a collection", call: patch("merge-patch+json", maps_, `{}`), code: 405, reason: "MethodNotAllowed"},
	{name: "delete across namespaces", call: del("/api/v1/configmaps"), code: 405, reason: "MethodNotAllowed"},
	{name: "delete of a status", call: del(defaultNS + "pods/x/status"), code: 405, reason: "MethodNotAllowed"},
	{name: "read of a review", call: get("/apis/authorization.k8s.io/v1/subjectaccessreviews"), code: 405, reason: "MethodNotAllowed"},
	{name: "update of a review", call: put("/apis/authorization.k8s.io/v1/subjectaccessreviews/x", `{}`), code: 404, reason: "NotFound"},
	{name: "create of a finalizer", call: post("/api/v1/namespaces/default/finalize", `{}`), code: 405, reason: "MethodNotAllowed"},
	{name: "POST to a version", call: post("/api/v1", `{}`), code: 405, reason: "MethodNotAllowed"},
	{name: "unknown method", call: call{method: "BREW", path: maps_}, code: 405, reason: "MethodNotAllowed"},
	{name: "OPTIONS", call: call{method: "OPTIONS", path: maps_}, code: 405, reason: "MethodNotAllowed"},
	{name: "HEAD", call: call{method: "HEAD", path: maps_ + "/there"}, code: 405},
}

// doublings are operations of a JSON patch that copy /x into itself.
func doublings(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,{"op":"copy","from":"/x","path":"/x/c%d"}`, i)
	}
	return b.String()
}

func TestBadInput(t *testing.T) {
	ours, _ := newLarder(t)
	theirs := newUpstream(t)
	for _, s := range []*side{ours, theirs} {
		s.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"default"}}`))
		s.must(t, post(maps_, `{"metadata":{"name":"there"},"data":{"k":"v"}}`))
	}
	for _, b := range slices.Concat(badBodies, badFields, badNames, badPatches, badTargets) {
		t.Run(b.name, func(t *testing.T) {
			a := ours.call(t, b.call)
			b.check(t, a)
			if b.alone {
				return
			}
			upstream := theirs.call(t, b.call)
			if b.method == http.MethodHead {
				upstream.body = nil // a recorder records it, a connection does not send it
			}
			compare(t, a, upstream)
		})
	}
	// The server lives, and nothing was written.
	ours.must(t, get(maps_+"/there"))
	if a := ours.call(t, get(maps_+"/x")); a.code != http.StatusNotFound {
		t.Errorf("got objects after the bad requests, want none: %s", a.body)
	}
}

// check compares a response with the expected one.
func (b *bad) check(t *testing.T, a response) {
	t.Helper()
	if a.code != b.code {
		t.Errorf("code %d, want %d: %s", a.code, b.code, a.body)
	}
	if got := a.header.Values("Warning"); !slices.Equal(got, b.warning) {
		t.Errorf("warnings %q, want %q", got, b.warning)
	}
	if allow := a.header.Get("Allow"); allow != "" {
		t.Errorf("Allow %q, which upstream does not send", allow)
	}
	if b.code < 400 || b.method == http.MethodHead {
		return
	}
	var status metav1.Status
	if b.reason == "" && a.header.Get("Content-Type") != "application/json" {
		if want := "404 page not found\n"; string(a.body) != want {
			t.Errorf("body %q, want %q", a.body, want)
		}
		return
	}
	decode(t, a.body, &status)
	if status.Kind != "Status" || status.APIVersion != "v1" || status.Status != metav1.StatusFailure || int(status.Code) != b.code {
		t.Errorf("got body %s, want the Status", a.body)
	}
	if status.Reason != b.reason {
		t.Errorf("reason %q, want %q", status.Reason, b.reason)
	}
	if b.message != "" && status.Message != b.message {
		t.Errorf("message:\ngot  %s\nwant %s", status.Message, b.message)
	}
	if b.causes != nil && (status.Details == nil || !slices.Equal(status.Details.Causes, b.causes)) {
		t.Errorf("causes: got %s, want %v", fmt.Sprint(status.Details), b.causes)
	}
}
