package customresources

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	clientset "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	crdinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/establish"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/openapi"
	larderadmission "github.com/larder-io/larder/internal/admission"
	"github.com/larder-io/larder/internal/registry"
)

// Config is the configuration of an [Extensions]. All fields but Admission, Alone and Servers are required.
type Config struct {
	Registry *registry.Registry

	// ClientConfig connects to this server. Webhooks calls conversion webhooks.
	ClientConfig *restclient.Config
	Webhooks     *larderadmission.Webhooks

	Admission  admission.Interface
	Authorizer authorizer.Authorizer

	// Discovery gets the groups, versions and resources that are served.
	Discovery aggregated.ResourceManager

	// Schemas returns the schemas that schemas of custom resources refer to.
	Schemas func() (map[string]*spec.Schema, error)

	// Complete reports whether the resources of aggregated servers are also known. Until then, an
	// unknown path gets 503, not 404.
	Complete func() bool

	// Alone says that no other server serves the same store. Otherwise creates wait until other
	// servers have seen a new CRD.
	Alone bool

	// Servers is the value of --apiserver-count. If it is greater than 1, a CRD is established after five
	// seconds.
	Servers int

	// MinRequestTimeout is the same as in httpapi.Config.
	MinRequestTimeout time.Duration
}

// Extensions serves custom resources.
type Extensions struct {
	config     Config
	builtIn    sets.Set[string] // groups whose requests built-in handlers serve, as in kube-apiserver
	client     clientset.Interface
	informers  informers.SharedInformerFactory
	establish  *establish.EstablishingController // set by Follow, before the informer starts
	discovery  *discovery
	changes    changeSignal                   // of servings
	converters *conversion.CRConverterFactory // of all CRDs
	schemas    func() (map[string]*spec.Schema, error)
	monitors   apimetrics.Resources // of all resources that were ever served

	templatesV2 *templates[spec.Swagger]
	templatesV3 *templates[spec3.OpenAPI]
	made        atomic.Uint64 // number of servings so far
	published   atomic.Uint64 // number of changes of servings and their CRDs
	describedV2 cachedList[openapi.Description[spec.Swagger]]
	describedV3 cachedList[openapi.Description[spec3.OpenAPI]]

	servings atomic.Pointer[index] // replaced by the informer's handlers, one after the other
	synced   <-chan struct{}       // closed when servings has all CRDs of the informer's first list
	follows  chan struct{}         // closed when Follow has started the informer and the controllers

	mu      sync.Mutex
	base    context.Context // of Run; nil before and after
	running sync.WaitGroup  // backends; added to under mu while base is set
}

// metadataModels is the prefix of the names of the schemas that schemas of custom resources refer
// to.
const metadataModels = "io.k8s.apimachinery.pkg.apis.meta.v1."

// resync is the interval at which the controllers handle every CRD again, as in upstream.
const resync = 5 * time.Minute

// New returns an Extensions that serves nothing yet. It does no I/O and starts nothing.
func New(config Config) (*Extensions, error) {
	e := &Extensions{
		config: config, builtIn: sets.New[string](), follows: make(chan struct{}),
		templatesV2: newTemplatesV2(), templatesV3: newTemplatesV3(),
	}
	for _, g := range config.Registry.Groups() {
		e.builtIn.Insert(g.Name)
	}
	var err error
	if e.client, err = clientset.NewForConfig(config.ClientConfig); err != nil {
		return nil, fmt.Errorf("customresources: %w", err)
	}
	if e.converters, err = conversion.NewCRConverterFactory(config.Webhooks, config.Webhooks.Auth); err != nil {
		return nil, fmt.Errorf("customresources: %w", err)
	}
	e.informers = informers.NewSharedInformerFactory(e.client, resync)
	crds := e.informers.Apiextensions().V1().CustomResourceDefinitions()
	e.discovery = &discovery{everything: config.Discovery, known: make(map[string]*group)}
	e.schemas = sync.OnceValues(func() (map[string]*spec.Schema, error) {
		all, err := config.Schemas()
		maps.DeleteFunc(all, func(name string, _ *spec.Schema) bool { return !strings.HasPrefix(name, metadataModels) })
		return all, err
	})
	e.servings.Store(&index{})
	if err := crds.Informer().AddIndexers(cache.Indexers{byGroup: func(obj any) ([]string, error) { return []string{crdOf(obj).Spec.Group}, nil }}); err != nil {
		return nil, fmt.Errorf("customresources: %w", err)
	}
	registration, err := crds.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { e.changed(crdOf(obj)) },
		UpdateFunc: func(_, obj any) { e.changed(crdOf(obj)) },
		DeleteFunc: func(obj any) { e.deleted(crdOf(obj)) },
	})
	if err != nil {
		return nil, fmt.Errorf("customresources: %w", err)
	}
	if e.synced = registration.HasSyncedChecker().Done(); e.crds() == nil {
		none := make(chan struct{})
		close(none)
		e.synced = none
	}
	return e, nil
}

// Run allows custom resources to be served until ctx ends, and returns when all backends have ended. It
// is called once.
func (e *Extensions) Run(ctx context.Context) error {
	e.mu.Lock()
	e.base = ctx
	e.mu.Unlock()
	<-ctx.Done()
	e.mu.Lock()
	e.base = nil
	e.mu.Unlock()
	e.running.Wait()
	return nil
}

// begin runs work of a backend on a goroutine that Run waits for. It reports false if Run has ended
// or not begun.
func (e *Extensions) begin(work func(ctx context.Context)) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.base == nil {
		return false
	}
	ctx := e.base
	e.running.Go(func() { work(ctx) })
	return true
}

// Following is closed when the informer of CRDs and the controllers run.
func (e *Extensions) Following() <-chan struct{} { return e.follows }

// Synced is closed when every CRD of the informer's first list is known.
func (e *Extensions) Synced() <-chan struct{} { return e.synced }

// isSynced reports whether Synced is closed.
func (e *Extensions) isSynced() bool {
	select {
	case <-e.synced:
		return true
	default:
		return false
	}
}

// CRDs returns the informer of CRDs, which Follow starts.
func (e *Extensions) CRDs() crdinformers.CustomResourceDefinitionInformer {
	return e.informers.Apiextensions().V1().CustomResourceDefinitions()
}

// WaitSynced blocks until every CRD of the informer's first list is known. Until
// then, requests for unknown resources get 503.
func (e *Extensions) WaitSynced(ctx context.Context) error {
	select {
	case <-e.synced:
	case <-ctx.Done():
		if !e.isSynced() {
			return fmt.Errorf("customresources: CRDs: %w", context.Cause(ctx))
		}
	}
	return nil
}
