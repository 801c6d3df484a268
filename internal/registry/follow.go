package registry

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/registry/storage"
)

// Follow returns a copy of e, an endpoint with a View, that is read from its own cache over another
// store. The caller runs the cache, whose Resource the View has, and retires it. It does no I/O.
func (r *Registry) Follow(e *Endpoint, in Override) (*Endpoint, error) {
	of := e.View.Resource
	res, err := storage.New(storage.Config{
		Store: in.Store, Tail: in.Tail, Prefix: r.config.Prefix, ResourcePrefix: r.options.keyPrefix(of.GroupResource),
		Codec: of.Codec(), Reads: r.options.reads, Cache: r.config.cache(0),
	})
	if err != nil {
		return nil, err
	}
	followed, view := *e, *e.View
	view.Resource = res
	followed.View = &view
	return &followed, nil
}

// Serve is a CustomResourceConfig.Make for objects that another API server has served: they are decoded as
// they are. It is called once.
func (c *CustomResource) Serve(gvk schema.GroupVersionKind) error {
	_, err := c.codec.Add(gvk, runtime.NewCodec(unstructured.UnstructuredJSONScheme, unstructured.UnstructuredJSONScheme), nil)
	return err
}

// CustomRoot returns the prefix of the keys of a custom resource. It ends in "/".
func (r *Registry) CustomRoot(gr schema.GroupResource) string {
	return r.config.Prefix + customPrefix(gr) + "/"
}
