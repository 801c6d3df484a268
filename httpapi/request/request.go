package request

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
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

	Action // its Parts are in this Request's room: see [Action.Clone]

	VerbInPath  bool // the verb is a path segment: /api/v1/watch/...
	InNamespace bool // the resource stands below namespaces/{name}/

	options    *internalversion.ListOptions
	optionsErr error

	// Memory for Parts and Query. Nearly all paths and queries fit.
	segments [8]string
	params   [4]Param
}

// Action is the part of a Request that an authorizer decides about. It is small enough to be kept while a
// watch is open.
type Action struct {
	Path string // percent-decoded, not cleaned: "//" and ".." stay

	// IsResourceRequest says that the path names an API resource; Verb is then
	// the Kubernetes verb, else the method in lower case.
	IsResourceRequest bool
	Verb              string

	APIPrefix, Group, Version        string
	Namespace, Resource, Subresource string

	// Name is the name in the path or, for a list or watch, the one name that
	// the field selector admits.
	Name string

	// Parts are the path segments from the resource on.
	Parts []string

	// FieldSelector and LabelSelector are as sent, for the verbs on which the
	// server honours them.
	FieldSelector, LabelSelector string
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
		r.Verb = verbOf(r.Method)
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

// NamesItem reports whether the path itself names an item.
func (r *Request) NamesItem() bool { return len(r.Parts) > 1 && r.Parts[1] != "" }

// IsReadOnly reports whether the request is a get, list or watch.
func (r *Action) IsReadOnly() bool { return r.Verb == "get" || r.Verb == "list" || r.Verb == "watch" }

// RequestInfo returns r in the form that upstream's code reads from contexts. The result shares r's Parts.
func (r *Action) RequestInfo() *apirequest.RequestInfo {
	info := &apirequest.RequestInfo{
		IsResourceRequest: r.IsResourceRequest, Path: r.Path, Verb: r.Verb, APIPrefix: r.APIPrefix,
		APIGroup: r.Group, APIVersion: r.Version, Namespace: r.Namespace, Resource: r.Resource,
		Subresource: r.Subresource, Name: r.Name, Parts: r.Parts,
	}
	if r.FieldSelector+r.LabelSelector != "" && authorizesSelectors() {
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

// decodeListOptions decodes well-formed options. It leaves all other input to upstream's decoder, for its errors. The
// first of repeated options counts.
func decodeListOptions(query Query) (*internalversion.ListOptions, error) {
	o := &internalversion.ListOptions{LabelSelector: labels.Everything(), FieldSelector: fields.Everything()}
	var seen [len(listOptions)]bool
	for _, p := range query {
		i := slices.Index(listOptions[:], p.Key)
		if i < 0 || seen[i] {
			continue
		}
		seen[i] = true
		if !setListOption(o, p.Key, p.Value) {
			o = new(internalversion.ListOptions)
			return o, internalscheme.ParameterCodec.DecodeParameters(query.Values(), metav1.SchemeGroupVersion, o)
		}
	}
	return o, nil
}

// listOptions are the parameters that setListOption knows.
var listOptions = [...]string{
	"labelSelector", "fieldSelector", "watch", "allowWatchBookmarks", "resourceVersion", "resourceVersionMatch",
	"continue", "shardSelector", "limit", "timeoutSeconds", "sendInitialEvents",
}

// setListOption sets one option and reports whether value was well-formed.
func setListOption(o *internalversion.ListOptions, key, value string) bool {
	var err error
	switch key {
	case "labelSelector":
		if value != "" {
			o.LabelSelector, err = labels.Parse(value)
		}
	case "fieldSelector":
		if value != "" {
			o.FieldSelector, err = fields.ParseSelector(value)
		}
	case "watch":
		o.Watch = IsTrue(value)
	case "allowWatchBookmarks":
		o.AllowWatchBookmarks = IsTrue(value)
	case "resourceVersion":
		o.ResourceVersion = value
	case "resourceVersionMatch":
		o.ResourceVersionMatch = metav1.ResourceVersionMatch(value)
	case "continue":
		o.Continue = value
	case "shardSelector":
		o.ShardSelector = value
	case "limit":
		o.Limit, err = strconv.ParseInt(value, 10, 64)
	case "timeoutSeconds":
		var seconds int64
		seconds, err = strconv.ParseInt(value, 10, 64)
		o.TimeoutSeconds = &seconds
	case "sendInitialEvents":
		send := IsTrue(value)
		o.SendInitialEvents = &send
	}
	return err == nil
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

// verbOf returns the verb of a method on an item.
func verbOf(method string) string {
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

// Attributes describe a request and its user to an authorizer, the audit policy and flow control (apiserver
// pkg/endpoints/filters/authorization.go). Few authorizers use selectors, so these are parsed on first use.
type Attributes struct {
	User    user.Info
	Request *Action
}

var _ authorizer.Attributes = (*Attributes)(nil)

// GetUser implements authorizer.Attributes.
func (a *Attributes) GetUser() user.Info { return a.User }

// GetVerb implements authorizer.Attributes.
func (a *Attributes) GetVerb() string { return a.Request.Verb }

// IsReadOnly implements authorizer.Attributes.
func (a *Attributes) IsReadOnly() bool { return a.Request.IsReadOnly() }

// GetNamespace implements authorizer.Attributes.
func (a *Attributes) GetNamespace() string { return a.Request.Namespace }

// GetResource implements authorizer.Attributes.
func (a *Attributes) GetResource() string { return a.Request.Resource }

// GetSubresource implements authorizer.Attributes.
func (a *Attributes) GetSubresource() string { return a.Request.Subresource }

// GetName implements authorizer.Attributes.
func (a *Attributes) GetName() string { return a.Request.Name }

// GetAPIGroup implements authorizer.Attributes.
func (a *Attributes) GetAPIGroup() string { return a.Request.Group }

// GetAPIVersion implements authorizer.Attributes.
func (a *Attributes) GetAPIVersion() string { return a.Request.Version }

// IsResourceRequest implements authorizer.Attributes.
func (a *Attributes) IsResourceRequest() bool { return a.Request.IsResourceRequest }

// GetPath implements authorizer.Attributes.
func (a *Attributes) GetPath() string { return a.Request.Path }

// Clone returns a copy of r that may be kept after the Request has ended. It has its own Parts, because r's keep the
// whole Request in memory.
func (r *Action) Clone() *Action {
	kept := *r
	kept.Parts = slices.Clone(r.Parts)
	return &kept
}

// GetFieldSelector implements authorizer.Attributes.
func (a *Attributes) GetFieldSelector() (fields.Requirements, error) {
	if a.Request.FieldSelector == "" || !authorizesSelectors() {
		return nil, nil
	}
	selector, err := fields.ParseSelector(a.Request.FieldSelector)
	if err != nil {
		return nil, err
	}
	if requirements := selector.Requirements(); len(requirements) > 0 {
		return requirements, nil
	}
	return nil, nil
}

// authorizesSelectors reports whether authorizers may look at selectors.
func authorizesSelectors() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.AuthorizeWithSelectors)
}

// GetLabelSelector implements authorizer.Attributes.
func (a *Attributes) GetLabelSelector() (labels.Requirements, error) {
	if a.Request.LabelSelector == "" || !authorizesSelectors() {
		return nil, nil
	}
	selector, err := labels.Parse(a.Request.LabelSelector)
	if err != nil {
		return nil, err
	}
	if requirements, _ := selector.Requirements(); len(requirements) > 0 {
		return requirements, nil
	}
	return nil, nil
}
