package inject

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/httpapi/faults"
)

// resource names rules in errors.
var resource = schema.GroupResource{Group: "larder", Resource: "faults"}

// ServeHTTP responds at faults.Path and below, in JSON: with a faults.State or a Status. The caller has authorized the
// request.
func (f *Faults) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	status := http.StatusOK
	body, err := f.serve(req)
	if err != nil {
		failed := err.Status()
		failed.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		status, body = int(failed.Code), failed
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client has left
}

func (f *Faults) serve(req *http.Request) (any, *apierrors.StatusError) {
	name, action, _ := strings.Cut(strings.Trim(strings.TrimPrefix(req.URL.Path, faults.Path), "/"), "/")
	switch method := req.Method; {
	case name == "" && method == http.MethodGet:
		return f.state(), nil
	case name == "" && method == http.MethodDelete:
		f.clear()
	case name != "" && action == "" && method == http.MethodPut:
		if err := f.put(name, req.Body); err != nil {
			return nil, err
		}
	case name != "" && action == "" && method == http.MethodDelete:
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.deleteLocked(name) {
			return nil, apierrors.NewNotFound(resource, name)
		}
	case (action == "step" || action == "release") && method == http.MethodPost:
		n := 0
		if action == "step" {
			var err error
			if n, err = strconv.Atoi(req.URL.Query().Get("events")); err != nil || n < 1 || n > faults.MaxCount {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("events must be a positive number up to %d", faults.MaxCount))
			}
		}
		if !f.letThrough(name, n) {
			return nil, apierrors.NewNotFound(resource, name)
		}
	case action == "" || action == "step" || action == "release":
		return nil, apierrors.NewMethodNotSupported(resource, strings.ToLower(method))
	default:
		return nil, apierrors.NewGenericServerResponse(http.StatusNotFound, "", resource, name, "", 0, false)
	}
	return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess}, nil
}

// put sets the rule in body.
func (f *Faults) put(name string, body io.Reader) *apierrors.StatusError {
	data, err := io.ReadAll(io.LimitReader(body, maxRuleSize+1))
	if err == nil && len(data) > maxRuleSize {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("a rule has at most %d bytes", maxRuleSize))
	}
	var r faults.Rule
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err = cmp.Or(err, decoder.Decode(&r)); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("rule %q: %v", name, err))
	}
	r.Name = name
	if err := r.Validate(); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if !f.set(r) {
		return apierrors.NewForbidden(resource, name, fmt.Errorf("there are already %d rules", maxRules))
	}
	return nil
}
