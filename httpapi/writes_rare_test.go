package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// rareWrite is a request of a fixed sequence. Empty fields are those of a request of alice to the object a.
type rareWrite struct {
	as, method, path string // path is below the collection
	media, body      string // body lacks its kind and name
	text             string // the whole body, if it is not empty
	admission        admissionScript
}

const (
	mergePatch, applyPatch = "application/merge-patch+json", "application/apply-patch+yaml"

	twins   = `"metadata":{"name":"a","ownerReferences":[` + oneTwin + `,` + oneTwin + `]}`
	oneTwin = `{"apiVersion":"v1","kind":"Pod","name":"o","uid":"11111111-0000-0000-0000-000000000000"}`
	twice   = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\ndata: {k: w}\n"
	held    = `"metadata":{"name":"a","finalizers":["example.com/f"]}`
)

// rareWrites are sequences that random ones hardly contain, by resource.
var rareWrites = map[string]map[string][]rareWrite{
	"leases": {
		"updates that create": {
			{as: "updater", method: "PUT"}, {as: "unlucky", method: "PUT"}, {as: "updater", media: applyPatch, path: "a?fieldManager=m"},
			{as: "updater", method: "PUT", path: "a?dryRun=All"}, {as: "lucky", method: "PUT", path: "a?dryRun=All"}, {method: "GET"},
			{as: "lucky", method: "PUT"}, {as: "updater", method: "PUT"}, {method: "GET"},
			{as: "lucky", media: applyPatch, path: "b?fieldManager=m", body: `"metadata":{"name":"b"}`},
		},
		"another name or namespace": {
			{method: "POST"}, {method: "PUT", body: `"metadata":{"name":"a","namespace":"other"}`}, {method: "PUT", body: `"metadata":{"name":"b"}`},
			{media: mergePatch, body: `"metadata":{"namespace":"other"}`}, {media: mergePatch, body: `"metadata":{"name":"b"}`},
			{media: applyPatch, path: "a?fieldManager=m", body: `"metadata":{"name":"a","namespace":"other"}`},
		},
	},
	"namespaces": {
		"another name or namespace": {
			{method: "PUT", path: "«ns»", body: `"metadata":{"name":"«ns»","namespace":"other"}`}, {media: mergePatch, path: "«ns»", body: `"metadata":{"namespace":"other"}`},
			{method: "PUT", path: "«ns»", body: `"metadata":{"name":"other"}`},
		},
	},
	"configmaps": {
		"duplicate owners": {
			{method: "POST", body: twins}, {method: "PUT", body: twins}, {media: mergePatch, body: twins}, {media: applyPatch, path: "a?fieldManager=m", body: twins},
			{method: "PUT", body: twins, admission: admissionScript{races: 1, race: "touch"}},
			{method: "PUT", admission: admissionScript{owners: true}}, {media: mergePatch, admission: admissionScript{owners: true}},
		},
		"dry runs": {
			{method: "POST", path: "?dryRun=All"}, {method: "GET"}, {method: "POST"}, {method: "PUT", path: "a?dryRun=All", body: `"data":{"k":"v"}`},
			{media: mergePatch, path: "a?dryRun=All", body: `"data":{"k":"v"}`}, {media: applyPatch, path: "a?dryRun=All&fieldManager=m"},
			{method: "DELETE", path: "a?dryRun=All"}, {method: "DELETE", path: "?dryRun=All"}, {method: "GET"},
		},
		"deletes": {
			{method: "POST", body: held}, {method: "DELETE", body: `"orphanDependents":false`}, {method: "DELETE", body: `"orphanDependents":true`},
			{method: "DELETE", path: "a?orphanDependents=false"}, {method: "DELETE", path: "a?propagationPolicy=Background"}, {method: "DELETE"},
			{media: mergePatch, body: `"metadata":{"finalizers":null}`},
			{method: "POST"}, {method: "DELETE", body: `"orphanDependents":false`},
			{method: "POST"}, {method: "DELETE", body: `"ignoreStoreReadErrorWithClusterBreakingPotential":true,"gracePeriodSeconds":5`},
			{method: "POST"}, {method: "DELETE", path: "?ignoreStoreReadErrorWithClusterBreakingPotential=true"}, {method: "GET"},
			{method: "POST"}, {method: "DELETE", path: "?fieldSelector=metadata.name%3Da"}, {method: "GET"},
		},
		"objects that are too large": {
			{method: "POST", body: manyKeys(), admission: admissionScript{large: true}}, {method: "DELETE"},
			{method: "POST"}, {method: "PUT", body: manyKeys(), admission: admissionScript{large: true}}, {method: "DELETE"},
			{method: "POST"}, {media: mergePatch, body: manyKeys(), admission: admissionScript{large: true}}, {method: "DELETE"},
			{media: applyPatch, path: "a?fieldManager=m", body: manyKeys(), admission: admissionScript{large: true}}, {method: "GET"},
		},
		"unknown fields": {
			{method: "POST", path: "?fieldValidation=Warn", body: `"odd":1`}, {method: "PUT", body: `"odd":1`}, {method: "PUT", path: "a?fieldValidation=Warn", body: `"odd":1`},
			{method: "PUT", path: "a?fieldValidation=Ignore", body: `"odd":1`}, {method: "PUT", path: "a?fieldValidation=Strict", body: `"odd":1`},
			{method: "PUT", path: "a?fieldValidation=Warn", body: `"odd":1,"data":{"k":1}`},
			{media: mergePatch, path: "a?fieldValidation=Warn", body: `"odd":1`}, {media: mergePatch, path: "a?fieldValidation=Strict", body: `"odd":1`},
			{media: applyPatch, path: "a?fieldManager=m&fieldValidation=Warn", body: `"odd":1`},
			{media: applyPatch, path: "a?fieldManager=m&force=true&fieldValidation=Warn", text: twice}, {media: applyPatch, path: "a?fieldManager=m&force=true&fieldValidation=Strict", text: twice},
		},
	},
	"pods": {
		"an eviction that the storage refuses by a Status": {
			{method: "POST", body: `"metadata":{"name":"a","labels":{"a":"b"}}`},
			{method: "POST", path: "../poddisruptionbudgets", body: `"metadata":{"name":"a"}`}, {method: "POST", path: "../poddisruptionbudgets", body: `"metadata":{"name":"b"}`},
			{media: mergePatch, path: "a/status", body: `"status":{"phase":"Running"}`}, {method: "POST", path: "a/eviction"}, {method: "GET"},
		},
	},
}

// TestRareWritesMatchUpstream compares all that TestWritesMatchUpstream does, for fixed sequences.
func TestRareWritesMatchUpstream(t *testing.T) {
	w := &writesPair{t: t, codes: make(map[string]int), ours: newWritesLarder(t), theirs: newWritesUpstream(t)}
	for _, kind := range writtenKinds() {
		for name, sequence := range rareWrites[kind.resource] {
			w.sequences++
			namespace := fmt.Sprintf("rare%d", w.sequences)
			t.Run(kind.resource+" "+name, func(t *testing.T) {
				var all []*writeRequest
				for _, r := range sequence {
					all = append(all, r.of(kind, namespace))
				}
				w.compare(t, namespace, all)
			})
		}
	}
}

// manyKeys returns the data of a body. Its managedFields make a large object too large.
func manyKeys() string {
	all := make(map[string]any)
	for i := range 24 {
		all[fmt.Sprint("k", i)] = "v"
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	return `"data":` + string(text)
}

// of makes the request one for a kind in a namespace.
func (w rareWrite) of(kind *writtenKind, namespace string) *writeRequest {
	path, query, _ := strings.Cut(w.path, "?")
	if rest, ok := strings.CutPrefix(path, "../"); ok {
		for _, other := range writtenKinds() {
			if other.resource == rest {
				kind, path = other, ""
			}
		}
	}
	r := &writeRequest{kind: kind, namespace: namespace, protocol: "HTTP/1.1", method: w.method, form: "json", admission: w.admission}
	if r.method == "" {
		r.method = http.MethodPatch
	}
	if path == "" && w.method != http.MethodPost && !strings.HasPrefix(w.path, "?") {
		path = "a"
	}
	r.path = strings.TrimSuffix(kind.collection(namespace)+"/"+path, "/") + "?" + query
	r.header = map[string]string{"Authorization": "Bearer alice", "User-Agent": "tester/1", "Content-Type": "application/json"}
	if w.as != "" {
		r.header["Authorization"] = "Bearer " + w.as
	}
	tree := kind.base("a")
	switch {
	case w.text != "":
		r.text, r.header["Content-Type"] = w.text, w.media
		return r
	case strings.HasSuffix(path, "/eviction"):
		tree = parsed(kind.creates["eviction"]).(map[string]any)
	case w.method == http.MethodGet:
		return r
	case w.method == http.MethodDelete && w.body == "":
		return r
	case w.method == http.MethodDelete:
		tree = map[string]any{"apiVersion": "v1", "kind": "DeleteOptions"}
	case w.media == mergePatch:
		tree = make(map[string]any)
	}
	if w.media != "" {
		r.header["Content-Type"] = w.media
	}
	for field, value := range parsed("{" + w.body + "}").(map[string]any) {
		tree[field] = value
	}
	r.tree, r.path = local(tree, namespace), strings.ReplaceAll(r.path, "«ns»", namespace)
	return r
}
