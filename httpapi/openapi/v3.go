package openapi

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
)

var inV3 = dialect{version: "v3", protobuf: handler3.ToV3ProtoBinary, pack: packFast}

// openAPIv3 serves the documents of OpenAPI v3 like kube-aggregator
// (pkg/controllers/openapiv3/aggregator) and the servers behind it.
type openAPIv3 struct {
	builtIn    map[string]*document // immutable; by path below /openapi/v3/
	extensions Extensions           // nil if there are none
	aggregator Aggregator           // nil if there is none

	mu    sync.Mutex
	known map[string]describedPart[*document] // documents of the extensions, by path; replaced whole
}

// extended returns the current documents of the extensions.
func (o *openAPIv3) extended() map[string]describedPart[*document] {
	if o.extensions == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known, _ = partsOf(o.known, o.extensions.OpenAPIV3(), func(d Description[spec3.OpenAPI]) *document { return newDocument(inV3, written(d)) })
	return o.known
}

// written returns a function that writes the document of d.
func written(d Description[spec3.OpenAPI]) func(w io.Writer) error {
	return func(w io.Writer) error {
		if d.Variants != nil {
			if variants := d.Variants(); len(variants) > 0 {
				if document, err := ofVariants(variants); err == nil {
					return document.write(w)
				}
			}
		}
		built, err := d.Build()
		if err != nil {
			return err
		}
		return writeJSON(w, built)
	}
}

// find returns the document at a path below /openapi/v3/, nil if there is none.
func (o *openAPIv3) find(name string) *document {
	if d := o.builtIn[name]; d != nil {
		return d
	}
	return o.extended()[name].part
}

// serveIndex lists the documents by their hashes, which needs all documents. net/http guesses the
// media type, as in kube-aggregator.
func (o *openAPIv3) serveIndex(w http.ResponseWriter, r *http.Request) {
	index, err := o.indexed()
	if err != nil {
		klog.ErrorS(err, "Cannot build the index of OpenAPI v3")
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	// Dates have whole seconds, and the index may change within one. So the response has a date, but requests with a
	// date always get the index.
	w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
	serveContent(w, r, time.Time{}, bytes.NewReader(index))
}

// indexed returns the current index.
func (o *openAPIv3) indexed() ([]byte, error) {
	root := handler3.OpenAPIV3Discovery{Paths: make(map[string]handler3.OpenAPIV3DiscoveryGroupVersion)}
	link := func(name string, d *document) error {
		p, err := d.in("json")
		if err == nil {
			root.Paths[name] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: hashed(name, p.tag)}
		}
		return err
	}
	for name, d := range o.builtIn {
		if err := link(name, d); err != nil {
			return nil, err
		}
	}
	for name, d := range o.extended() {
		if err := link(name, d.part); err != nil {
			klog.ErrorS(err, "Omitting an API from the index of OpenAPI v3", "path", name)
		}
	}
	if o.aggregator != nil {
		for name, linked := range o.aggregator.OpenAPIV3() {
			if _, own := root.Paths[name]; !own {
				root.Paths[name] = linked
			}
		}
	}
	return json.Marshal(root)
}

// hashed returns the URL of a document with its hash.
func hashed(name, tag string) string {
	u := url.URL{Path: path.Join("/openapi/v3", name), RawQuery: url.Values{"hash": {tag}}.Encode()}
	return u.String()
}

// serveDocument serves one document. It follows kube-openapi pkg/handler3/handler.go.
func (o *openAPIv3) serveDocument(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/openapi/v3/")
	d := o.find(name)
	switch {
	case d == nil && o.aggregator != nil:
		o.aggregator.ServeOpenAPIV3(w, r) // or 404
		return
	case d == nil:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Add("Vary", "Accept")
	wanted := clauses(r)
	p, subType, ok, err := d.acceptable(wanted)
	switch {
	case len(wanted) == 0:
		return // the Accept header is malformed
	case err != nil:
		klog.ErrorS(err, "Cannot build an OpenAPI v3 document", "path", name)
		return
	case !ok:
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	if hash := r.URL.Query().Get("hash"); hash != "" {
		if hash != p.tag {
			w.Header().Set("Content-Type", "application/"+subType)
			w.Header().Set("Etag", `"`+p.tag+`"`)
			http.Redirect(w, r, hashed(name, p.tag), http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).Format(time.RFC1123))
	}
	p.send(w, r, subType)
}
