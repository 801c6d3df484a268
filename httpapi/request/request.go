package request

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// Request is a client's request, parsed once. Its fields have the values of upstream's RequestInfo (apiserver
// pkg/endpoints/request/requestinfo.go). It holds no bytes of the connection's buffers, and does not change after
// [Request.Parse], except that the list options are decoded on first use.
type Request struct {
	Method   string
	Target   string // the request target as it was sent
	Host     string // the host in the target; usually ""
	RawQuery string
	Query    Query // the parameters of RawQuery that could be decoded

	Path string // percent-decoded, not cleaned: "//" and ".." stay

	// IsResourceRequest says that the path names an API resource; Verb is then
	// the Kubernetes verb, else the method in lower case.
	IsResourceRequest bool
	Verb              string
	VerbInPath        bool // the verb is a path segment: /api/v1/watch/...

	APIPrefix, Group, Version        string
	Namespace, Resource, Subresource string
	InNamespace                      bool // the resource stands below namespaces/{name}/

	// Name is the name in the path or, for a list or watch, the one name that
	// the field selector admits.
	Name string

	// Parts are the path segments from the resource on. They may be in this Request's memory.
	Parts []string

	// FieldSelector and LabelSelector are as sent, for the verbs on which the
	// server honours them.
	FieldSelector, LabelSelector string

	options    *internalversion.ListOptions
	optionsErr error

	// Memory for Parts and Query. Nearly all paths and queries fit.
	segments [8]string
	params   [4]Param
}

// ErrTarget is the cause of a request target that is no URL.
var ErrTarget = errors.New("httpapi: malformed request target")

// Parse reads a request line's method and target into r, which is zero. The error is ErrTarget, or upstream's for a
// path that ends where a resource is missing. In the latter case r holds the parts before.
func (r *Request) Parse(method, target string) error {
	r.Method, r.Target = method, target
	if err := r.parseTarget(); err != nil {
		return err
	}
	r.Query = parseQuery(r.params[:0], r.RawQuery)
	r.Verb = strings.ToLower(method)
	return r.parsePath()
}

// parseTarget splits the target as net/http's server does.
func (r *Request) parseTarget() error {
	u, err := r.SentURL()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTarget, err)
	}
	r.Host, r.Path, r.RawQuery = u.Host, u.Path, u.RawQuery
	return nil
}

// SentURL is the target as net/http's server reads it. Only the parser and audit records use it.
func (r *Request) SentURL() (*url.URL, error) {
	target := r.Target
	if r.Method == http.MethodConnect && !strings.HasPrefix(target, "/") {
		target = "http://" + target
	}
	return url.ParseRequestURI(target)
}

// URL returns a target that is written from the parsed one, so that handlers read what was authorized. Behind the
// proxy of a pod, node or service, a server gets the parameters in their original spelling.
func (r *Request) URL() *url.URL {
	if r.Subresource == "proxy" {
		return &url.URL{Path: r.Path, RawQuery: sentQuery(r.RawQuery)}
	}
	return &url.URL{Path: r.Path, RawQuery: r.Query.Encode()}
}

// parsePath derives everything but Method, Target and the query from Path.
func (r *Request) parsePath() error {
	parts := splitPath(r.segments[:0], r.Path)
	if len(parts) < 3 || (parts[0] != "api" && parts[0] != "apis") {
		return nil
	}
	if r.APIPrefix = parts[0]; r.APIPrefix == "apis" {
		if len(parts) < 4 {
			return nil
		}
		r.Group = parts[1]
		parts = parts[1:]
	}
	r.IsResourceRequest = true
	r.Version = parts[1]
	parts = parts[2:]

	if parts[0] == "proxy" || parts[0] == "watch" {
		if len(parts) < 2 {
			return fmt.Errorf("unable to determine kind and namespace from url, %s", r.Target)
		}
		r.Verb, r.VerbInPath = parts[0], true
		parts = parts[1:]
	} else {
		r.Verb = VerbOf(r.Method)
	}
	r.parseResource(parts)
	r.refineVerb()
	return nil
}

// parseResource reads the segments from the resource or its namespace on.
func (r *Request) parseResource(parts []string) {
	if parts[0] == "namespaces" && len(parts) > 1 {
		r.Namespace = parts[1]
		// These two are subresources of a namespace; all other paths are inside it.
		if len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
			parts = parts[2:]
			r.InNamespace = true
		}
	}
	r.Parts = parts
	r.Resource = parts[0]
	if len(parts) > 1 {
		r.Name = parts[1]
	}
	if len(parts) > 2 && r.Verb != "proxy" {
		r.Subresource = parts[2]
	}
}

// refineVerb distinguishes items from collections, and sets the selectors.
func (r *Request) refineVerb() {
	if r.Name == "" && r.Verb == "get" {
		r.refineGet()
	}
	if r.Name == "" && r.Verb == "delete" {
		r.Verb = "deletecollection"
	}
	// Requests whose verb is in the path have single-object forms without selectors, so
	// selectors grant nothing there.
	if !r.VerbInPath && (r.Verb == "list" || r.Verb == "watch" || r.Verb == "deletecollection") {
		r.FieldSelector = r.Query.Get("fieldSelector")
		r.LabelSelector = r.Query.Get("labelSelector")
	}
}

// refineGet makes a GET without a name a list or a watch.
func (r *Request) refineGet() {
	r.Verb = "list"
	options, err := r.ListOptions()
	if err != nil {
		// A query that does not decode still says whether to watch.
		if v, ok := r.Query.Lookup("watch"); ok && IsTrue(v) {
			r.Verb = "watch"
		}
		return
	}
	if options.Watch {
		r.Verb = "watch"
	}
	if options.FieldSelector == nil {
		return
	}
	if name, ok := options.FieldSelector.RequiresExactMatch("metadata.name"); ok && len(content.IsPathSegmentName(name)) == 0 {
		r.Name = name
	}
}

// NamesItem reports whether the path is that of an item or of its subresource.
func (r *Request) NamesItem() bool { return len(r.Parts) > 1 }

// LacksName reports whether the path is that of an item whose name is empty, as in pods//log. Verb is then that of a
// collection, and Name may come from a field selector.
func (r *Request) LacksName() bool { return r.NamesItem() && r.Parts[1] == "" }

// IsReadOnly reports whether the request is a get, list or watch.
func (r *Request) IsReadOnly() bool { return r.Verb == "get" || r.Verb == "list" || r.Verb == "watch" }

// RequestInfo returns r in the form that upstream's code reads from contexts. The result shares r's Parts.
func (r *Request) RequestInfo() *apirequest.RequestInfo {
	info := &apirequest.RequestInfo{
		IsResourceRequest: r.IsResourceRequest, Path: r.Path, Verb: r.Verb, APIPrefix: r.APIPrefix,
		APIGroup: r.Group, APIVersion: r.Version, Namespace: r.Namespace, Resource: r.Resource,
		Subresource: r.Subresource, Name: r.Name, Parts: r.Parts,
	}
	if authorizesSelectors() {
		info.FieldSelector, info.LabelSelector = r.FieldSelector, r.LabelSelector
	}
	return info
}

// ListOptions decodes the query as upstream decodes the query of a list or watch, once. The result belongs to r.
func (r *Request) ListOptions() (*internalversion.ListOptions, error) {
	if r.options == nil && r.optionsErr == nil {
		r.options, r.optionsErr = decodeListOptions(r.Query)
	}
	return r.options, r.optionsErr
}

// ValidListOptions decodes, defaults and validates the options of a list, watch or deletecollection of kind, in
// upstream's order (apiserver pkg/endpoints/handlers/get.go and delete.go). The result belongs to the caller.
func (r *Request) ValidListOptions(convertor runtime.ObjectConvertor, kind schema.GroupVersionKind) (*internalversion.ListOptions, error) {
	decoded, err := r.ListOptions()
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	o := *decoded
	watchList := utilfeature.DefaultFeatureGate.Enabled(features.WatchList)
	internalversion.SetListOptionsDefaults(&o, watchList)
	if errs := validation.ValidateListOptions(&o, watchList); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	if o.FieldSelector != nil && !o.FieldSelector.Empty() {
		o.FieldSelector, err = o.FieldSelector.Transform(func(label, value string) (string, string, error) {
			return convertor.ConvertFieldLabel(kind, label, value)
		})
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	return &o, nil
}

// decodeListOptions decodes query by upstream's generated conversions. Its codec finds them through a scheme, which
// costs more than they do.
func decodeListOptions(query Query) (*internalversion.ListOptions, error) {
	values := query.Values()
	var v1 metav1.ListOptions
	if err := metav1.Convert_url_Values_To_v1_ListOptions(&values, &v1, nil); err != nil {
		return nil, err
	}
	o := new(internalversion.ListOptions)
	return o, internalversion.Convert_v1_ListOptions_To_internalversion_ListOptions(&v1, o, nil)
}

// IsTrue is upstream's reading of a boolean parameter: present means true
// (apimachinery pkg/runtime/conversion.go).
func IsTrue(value string) bool {
	return value != "0" && !strings.EqualFold(value, "false")
}

// StatusPath is the path of the server's status, which is a stream if the query has watch.
const StatusPath = "/larder/status"

// LongRunning reports whether the request has no deadline (apiserver
// pkg/server/filters/longrunning.go, with kube-apiserver's verbs and subresources).
func (r *Request) LongRunning() bool {
	if r.Verb == "watch" || r.Verb == "proxy" {
		return true
	}
	if !r.IsResourceRequest {
		watch, asked := r.Query.Lookup("watch")
		return strings.HasPrefix(r.Path, "/debug/pprof/") || r.Path == StatusPath && asked && IsTrue(watch)
	}
	switch r.Subresource {
	case "attach", "exec", "proxy", "log", "portforward":
		return true
	}
	return false
}

// VerbOf returns the verb of a method on an item.
func VerbOf(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodGet, http.MethodHead:
		return "get"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	default:
		return ""
	}
}

// splitPath appends the segments of path to dst.
func splitPath(dst []string, path string) []string {
	path = strings.Trim(path, "/")
	if path == "" {
		return nil
	}
	for part := range strings.SplitSeq(path, "/") {
		dst = append(dst, part)
	}
	return dst
}

// Attributes describe r, sent by u, to an authorizer, the audit policy and flow control (apiserver
// pkg/endpoints/filters/authorization.go). They do not refer to r.
func (r *Request) Attributes(u user.Info) authorizer.AttributesRecord {
	a := authorizer.AttributesRecord{
		User: u, Verb: r.Verb, Namespace: r.Namespace, APIGroup: r.Group, APIVersion: r.Version, Resource: r.Resource,
		Subresource: r.Subresource, Name: r.Name, ResourceRequest: r.IsResourceRequest, Path: r.Path,
	}
	if r.FieldSelector+r.LabelSelector == "" || !authorizesSelectors() {
		return a
	}
	o, err := r.ListOptions()
	if err != nil { // one of the selectors may still be valid
		o = new(internalversion.ListOptions)
		o.FieldSelector, a.FieldSelectorParsingErr = fields.ParseSelector(r.FieldSelector)
		o.LabelSelector, a.LabelSelectorParsingErr = labels.Parse(r.LabelSelector)
	}
	if a.FieldSelectorParsingErr == nil && !o.FieldSelector.Empty() {
		a.FieldSelectorRequirements = o.FieldSelector.Requirements()
	}
	if a.LabelSelectorParsingErr == nil && !o.LabelSelector.Empty() {
		a.LabelSelectorRequirements, _ = o.LabelSelector.Requirements()
	}
	return a
}

// authorizesSelectors reports whether authorizers may look at selectors.
func authorizesSelectors() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.AuthorizeWithSelectors)
}
