package reads

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apistorage "k8s.io/apiserver/pkg/storage"
	storeerrors "k8s.io/apiserver/pkg/storage/errors"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/negotiate"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/registry/storage"
)

// get answers a GET of one object: apiserver pkg/endpoints/handlers/get.go,
// GetResource, and pkg/registry/generic/registry/store.go, Get.
func (x *Read) get(i *Resource) {
	f, ok := x.Negotiate(i)
	if !ok {
		x.ObserveRefused(i)
		return
	}
	o, err := x.getObject(i)
	if err != nil {
		x.Fail(err)
		x.Observe(i, x.Length())
		return
	}
	if err := x.sendObject(i, f, o); err != nil {
		x.Fail(err)
	}
	x.Observe(i, x.Length())
}

// getObject finds the object that the request names.
func (x *Read) getObject(i *Resource) (*cache.Object, error) {
	if value, ok := x.Query.Lookup("export"); ok && request.IsTrue(value) {
		return nil, apierrors.NewBadRequest("the export parameter, deprecated since v1.14, is no longer supported")
	}
	scope := storage.Scope{Name: x.Name}
	if i.Endpoint.Namespaced {
		if scope.Namespace = x.Namespace; scope.Namespace == "" {
			return nil, apierrors.NewBadRequest("Namespace parameter required.")
		}
	}
	if err := checkName(x.Name); err != nil {
		return nil, err
	}
	version := x.Query.Get("resourceVersion")
	if x.Traced() {
		x.Event("About to Get from storage")
		x.Enter("cacher.Get", attribute.String("audit-id", x.AuditID), attribute.String("key", i.View.Resource.KeyOf(scope)), attribute.String("resource-version", version))
		if version == "" { // whose revision the object is to have, wherever it is kept
			x.Event("About to Get from underlying storage")
		} else {
			x.Event("About to fetch object from cache")
		}
		defer x.Leave()
	}
	ctx, cancel := x.Bounded()
	defer cancel()
	if version != "0" {
		began := time.Now()
		defer func() { x.Waited += time.Since(began) }() // for the cache to be fresh: all else is done at once
	}
	o, err := i.View.Resource.Get(x.Audit.Context(ctx), scope, version)
	if version != "" && (err == nil || apistorage.IsNotFound(err)) {
		x.Event("watchCache fresh enough")
	}
	if err != nil {
		return nil, storeerrors.InterpretGetError(x.ReadError(i, err), x.groupResource(), x.Name)
	}
	return o, nil
}

// checkName refuses names that would be another key.
func checkName(name string) error {
	if name == "" {
		return apierrors.NewBadRequest("name must be provided")
	}
	if reasons := content.IsPathSegmentName(name); len(reasons) > 0 {
		message := reasons[0]
		for _, more := range reasons[1:] {
			message += ";" + more
		}
		return apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", name, message))
	}
	return nil
}

// ReadError returns the error that a client sees for err, of a read of i. If the deadline of the
// request ended a wait, the request has timed out.
func (x *Read) ReadError(i *Resource, err error) error {
	if apistorage.IsRequestTimeout(err) {
		x.Monitor(i).Terminated(http.StatusGatewayTimeout)
		return exchange.ErrTimeout
	}
	return err
}

// VersionOf returns the version of the objects in an answer.
func (x *Read) VersionOf(f negotiate.Format) schema.GroupVersion {
	if f.Convert != nil {
		return f.Convert.GroupVersion()
	}
	return schema.GroupVersion{Group: x.Group, Version: x.Version}
}

// sendObject answers with o.
func (x *Read) sendObject(i *Resource, f negotiate.Format, o *cache.Object) error {
	x.Answering(f.MediaType, x.VersionOf(f))
	if f.IsTable() {
		options, err := f.TableOptions(x.Query)
		if err != nil {
			return err
		}
		table, err := i.View.TableOf(x.Base(), o, 0, options, f.Convert.GroupVersion())
		if err != nil {
			return err
		}
		x.sendTable(f, table)
		return nil
	}
	if f.Convert != nil && f.Convert.Kind == "PartialObjectMetadataList" {
		if i.bare {
			return errNoList
		}
		return negotiate.NotAcceptable(fmt.Sprintf("you requested PartialObjectMetadataList, but the requested object is not a list (%T)", i.Endpoint.Storage.New()))
	}
	encoder := i.View.Encoder(f.Encoding(), f.Projection())
	item, err := encoder.Item(o)
	if err != nil {
		return err
	}
	x.SendObject(http.StatusOK, f.MediaType, f.Pretty, encoder, item)
	return nil
}

// errNoList is upstream's error for a client that wants one object without a Go type as a list
// (apimachinery pkg/apis/meta/v1/unstructured/unstructured.go).
var errNoList = errors.New("content is not a list")
