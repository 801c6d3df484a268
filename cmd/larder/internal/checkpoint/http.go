package checkpoint

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Path is the path of ServeHTTP: GET of Path lists the checkpoints, POST to Path/NAME takes one, POST to
// Path/NAME/reset resets to it, and DELETE of Path/NAME deletes it.
const Path = "/larder/checkpoints"

// ServeHTTP responds at Path and below, in JSON: with an Info, a list of Infos, an Outcome or a Status. The caller must
// have authorized the request.
func (c *Checkpoints) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	name, action, _ := strings.Cut(strings.Trim(strings.TrimPrefix(req.URL.Path, Path), "/"), "/")
	var body any
	var err error
	status := http.StatusOK
	switch method := req.Method; {
	case name == "" && method == http.MethodGet:
		body = map[string][]Info{"items": c.List()}
	case name == "":
		err = apierrors.NewMethodNotSupported(resource, strings.ToLower(method))
	case len(validation.IsDNS1123Subdomain(name)) > 0:
		err = apierrors.NewBadRequest("the name of a checkpoint: " + strings.Join(validation.IsDNS1123Subdomain(name), "; "))
	case action == "" && method == http.MethodPost:
		status = http.StatusCreated
		body, err = c.Take(req.Context(), name)
	case action == "reset" && method == http.MethodPost:
		body, err = c.Reset(req.Context(), name)
	case action == "" && method == http.MethodDelete:
		body, err = metav1.Status{TypeMeta: statusType, Status: metav1.StatusSuccess}, c.Drop(name)
	case action == "" || action == "reset":
		err = apierrors.NewMethodNotSupported(resource, strings.ToLower(method))
	default:
		err = apierrors.NewGenericServerResponse(http.StatusNotFound, "", resource, name, "", 0, false)
	}
	if err != nil {
		failed := asStatus(err, name)
		status, body = int(failed.Code), failed
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // an error means that the client has disconnected
}

// resource names checkpoints in errors.
var resource = schema.GroupResource{Group: "larder", Resource: "checkpoints"}

var statusType = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}

// asStatus returns the Status for err.
func asStatus(err error, name string) metav1.Status {
	var status metav1.Status
	var apiStatus apierrors.APIStatus
	switch {
	case errors.As(err, &apiStatus):
		status = apiStatus.Status()
	case errors.Is(err, ErrUnknown):
		status = apierrors.NewNotFound(resource, name).Status()
	case errors.Is(err, ErrTooLarge):
		status = apierrors.NewRequestEntityTooLargeError(err.Error()).Status()
	case errors.Is(err, ErrBusy):
		status = apierrors.NewConflict(resource, name, err).Status()
	case errors.Is(err, ErrReplaced):
		//lint:ignore SA1019 the reason is Gone, not Expired
		status = apierrors.NewGone(err.Error()).Status()
	default:
		status = apierrors.NewInternalError(err).Status()
	}
	status.TypeMeta = statusType
	return status
}
