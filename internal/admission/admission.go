package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	webhookinit "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	apiserverv1alpha1 "k8s.io/apiserver/pkg/apis/apiserver/v1alpha1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/features"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	basecompatibility "k8s.io/component-base/compatibility"
	controlplaneadmission "k8s.io/kubernetes/pkg/controlplane/apiserver/admission"
	kubeadmission "k8s.io/kubernetes/pkg/kubeapiserver/admission"
	"k8s.io/kubernetes/pkg/kubeapiserver/admission/exclusion"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"

	"github.com/larder-io/larder/internal/registry"
)

// Config is the configuration of a [Chain]. All fields are required.
type Config struct {
	// Options are kube-apiserver's flags of admission. Load does not validate them.
	Options  *kubeoptions.AdmissionOptions
	Registry *registry.Registry

	// ServerID names the server in the metrics of plugins.
	ServerID string

	// ClientConfig and Client connect to this server.
	ClientConfig *rest.Config
	Client       kubernetes.Interface

	// Informers are shared with the server. Load requests the informers that the plugins need. The
	// caller starts them. Informers that start later end when the caller closes InformersEnd.
	Informers    informers.SharedInformerFactory
	InformersEnd <-chan struct{}

	Authorizer authorizer.Authorizer
	Webhooks   *Webhooks

	// APIResources has the served resources.
	APIResources serverstorage.APIResourceConfigSource
}

// Chain admits every write. It implements admission.Interface for both phases.
type Chain struct {
	admission.Interface
	admit    admission.MutationInterface
	validate admission.ValidationInterface

	mapper *restmapper.DeferredDiscoveryRESTMapper

	running chan struct{} // closed when Run has begun
	ended   chan struct{} // closed when Run ends: upstream's "drained"

	opening, abandoning sync.Once
	open                chan struct{} // closed by Open
	abandoned           chan struct{} // closed by Abandon
}

const (
	// informersTimeout limits how long writes wait for informers. It is upstream's limit for each
	// plugin (apiserver pkg/admission/handler.go).
	informersTimeout = 10 * time.Second
	// mapperResetInterval is the interval in which the mapper discards its copy of discovery
	// (apiserver pkg/server/options/admission.go).
	mapperResetInterval = 30 * time.Second
)

// Load reads the files that the options name and builds the chain.
func Load(config Config) (*Chain, error) {
	c := &Chain{running: make(chan struct{}), ended: make(chan struct{}), open: make(chan struct{}), abandoned: make(chan struct{})}
	if err := c.load(&config); err != nil {
		close(c.ended)
		return nil, fmt.Errorf("admission: %w", err)
	}
	return c, nil
}

// enabled lists the enabled plugins in their order, as apiserver pkg/server/options/admission.go and
// kubernetes pkg/kubeapiserver/options/admission.go do.
func enabled(o *kubeoptions.AdmissionOptions) []string {
	generic := o.GenericAdmission
	return slices.DeleteFunc(slices.Clone(generic.RecommendedPluginOrder), func(name string) bool {
		if o.PluginNames != nil {
			return !slices.Contains(o.PluginNames, name)
		}
		off := generic.DefaultOffPlugins.Has(name) || slices.Contains(generic.DisablePlugins, name)
		return off && !slices.Contains(generic.EnablePlugins, name)
	})
}

func (c *Chain) load(config *Config) error {
	names := enabled(config.Options)
	scheme := runtime.NewScheme() // of the kinds of --admission-control-config-file
	if err := errors.Join(apiserverapi.AddToScheme(scheme), apiserverv1alpha1.AddToScheme(scheme), apiserverv1.AddToScheme(scheme)); err != nil {
		return err
	}
	provider, err := admission.ReadAdmissionConfiguration(names, config.Options.GenericAdmission.ConfigFile, scheme)
	if err != nil {
		return fmt.Errorf("failed to read plugin config: %w", err)
	}
	shared := factory{SharedInformerFactory: config.Informers, registry: config.Registry, end: config.InformersEnd}
	initializers, err := c.initializers(config, shared)
	if err != nil {
		return err
	}
	decorators := admission.Decorators{
		admission.DecoratorFunc(func(plugin admission.Interface, name string) admission.Interface {
			return skipWithoutWebhooks(plugin, name, config.Informers)
		}),
		admission.DecoratorFunc(admissionmetrics.WithControllerMetrics),
	}
	plugins, err := config.Options.GenericAdmission.Plugins.NewFromPlugins(names, provider, initializers, decorators)
	if err != nil {
		return err
	}
	c.Interface = admissionmetrics.WithStepMetrics(plugins)
	c.admit, _ = c.Interface.(admission.MutationInterface)
	c.validate, _ = c.Interface.(admission.ValidationInterface)
	if c.admit == nil || c.validate == nil {
		return fmt.Errorf("chain %T lacks a phase", c.Interface)
	}
	return nil
}

// mutatingWebhooks calls upstream's plugin of mutating webhooks only if there may be a webhook: the plugin copies
// each object.
type mutatingWebhooks struct {
	admission.MutationInterface
	configured cache.SharedIndexInformer
}

// skipWithoutWebhooks wraps the plugin of mutating webhooks in a mutatingWebhooks, unless manifest files may contain
// webhooks. It returns other plugins unchanged.
func skipWithoutWebhooks(plugin admission.Interface, name string, shared informers.SharedInformerFactory) admission.Interface {
	admit, ok := plugin.(admission.MutationInterface)
	if !ok || name != mutatingwebhook.PluginName || utilfeature.DefaultFeatureGate.Enabled(features.ManifestBasedAdmissionControlConfig) {
		return plugin
	}
	return mutatingWebhooks{admit, shared.Admissionregistration().V1().MutatingWebhookConfigurations().Informer()}
}

// Admit implements admission.MutationInterface.
func (w mutatingWebhooks) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if w.configured.HasSynced() && len(w.configured.GetStore().ListKeys()) == 0 {
		return nil
	}
	return w.MutationInterface.Admit(ctx, a, o)
}

// initializers returns the initializers that pass clients, informers and others to the plugins, as
// kubernetes pkg/controlplane/apiserver/config.go does.
func (c *Chain) initializers(config *Config, shared informers.SharedInformerFactory) (admission.PluginInitializers, error) {
	dynamicClient, err := dynamic.NewForConfig(config.ClientConfig)
	if err != nil {
		return nil, err
	}
	quotas, err := quotainstall.NewQuotaConfigurationForAdmission(shared, config.APIResources)
	if err != nil {
		return nil, err
	}
	kube, err := new(kubeadmission.Config).New()
	if err != nil {
		return nil, err
	}
	c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(config.Client.Discovery()))
	effective := compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	client := lazyClient{config.Client, noMutatingPolicies(config), config.InformersEnd}
	generic := initializer.New(client, dynamicClient, shared, config.Authorizer, utilfeature.DefaultFeatureGate, effective, c.ended, c.mapper)
	hooks := webhookinit.NewPluginInitializer(config.Webhooks.Auth, config.Webhooks)
	control := controlplaneadmission.NewPluginInitializer(quotas, exclusion.Excluded())
	// The generic initializer makes plugins read files. Metrics of these reads have the server's ID.
	id := initializer.NewAPIServerIDInitializer(config.ServerID)
	return append(admission.PluginInitializers{id, generic, hooks, control}, kube...), nil
}

// noMutatingPolicies returns a function that reports whether no binding of a mutating policy is
// known. Without a binding a policy has no effect.
func noMutatingPolicies(config *Config) func() bool {
	if !utilfeature.DefaultFeatureGate.Enabled(features.MutatingAdmissionPolicy) || !slices.Contains(enabled(config.Options), mutatingpolicy.PluginName) {
		return func() bool { return true } // their resource may not even be served
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.ManifestBasedAdmissionControlConfig) {
		return func() bool { return false } // bindings may come from files
	}
	bindings := config.Informers.Admissionregistration().V1().MutatingAdmissionPolicyBindings().Informer().GetStore()
	return func() bool { return len(bindings.ListKeys()) == 0 }
}

// Run updates the plugins' state until ctx ends. It must be called once, if only with an ended
// context.
func (c *Chain) Run(ctx context.Context) error {
	defer close(c.ended)
	defer c.Open()
	close(c.running)
	defer time.AfterFunc(informersTimeout, c.Open).Stop()
	wait.UntilWithContext(ctx, func(context.Context) { c.mapper.Reset() }, mapperResetInterval)
	return nil
}

// Open ends the wait of writes for the informers, because they have synced.
func (c *Chain) Open() { c.opening.Do(func() { close(c.open) }) }

// Abandon rejects the writes that wait for the informers. The caller knows that the informers will never sync, because
// the server stops.
func (c *Chain) Abandon() { c.abandoning.Do(func() { close(c.abandoned) }) }

// Running is closed when Run has begun. Then kube-apiserver's health check
// poststarthook/start-apiserver-admission-initializer passes.
func (c *Chain) Running() <-chan struct{} { return c.running }

// Admit implements admission.MutationInterface.
func (c *Chain) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if !c.await(ctx) {
		return admission.NewForbidden(a, errNotReady)
	}
	return c.admit.Admit(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (c *Chain) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if !c.await(ctx) {
		return admission.NewForbidden(a, errNotReady)
	}
	return c.validate.Validate(ctx, a, o)
}

// errNotReady has the text of upstream's plugins.
var errNotReady = errors.New("not yet ready to handle request")

// await blocks until the informers have synced, informersTimeout has passed since the start of Run, or Run or ctx ends.
// It reports false only after Abandon: the write must then be rejected.
func (c *Chain) await(ctx context.Context) bool {
	select {
	case <-c.open:
		return true
	default:
	}
	select {
	case <-c.open:
	case <-ctx.Done():
	case <-c.abandoned:
		return false
	}
	return true
}
