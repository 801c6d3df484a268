package admission

import (
	"context"
	"sync/atomic"

	"k8s.io/apiserver/pkg/admission"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// conditional calls a plugin only while objects that configure it exist. It and the plugin learn
// of these objects from the same informer, so one is as current as the other.
type conditional struct {
	admission.Interface
	admit    admission.MutationInterface   // nil if the plugin changes nothing
	validate admission.ValidationInterface // nil if the plugin refuses nothing

	synced  <-chan struct{} // closed once count is that of all objects there were
	objects atomic.Int64
}

// guard makes the plugins of policies and webhooks conditional, unless their configuration can
// come from elsewhere than the API.
func (c *Chain) guard(plugin admission.Interface, name string, shared informers.SharedInformerFactory) admission.Interface {
	if utilfeature.DefaultFeatureGate.Enabled(features.ManifestBasedAdmissionControlConfig) {
		return plugin
	}
	configured := shared.Admissionregistration().V1()
	var informer cache.SharedIndexInformer
	switch name {
	case mutatingwebhook.PluginName:
		informer = configured.MutatingWebhookConfigurations().Informer()
	case validatingwebhook.PluginName:
		informer = configured.ValidatingWebhookConfigurations().Informer()
	case mutatingpolicy.PluginName: // a policy that nothing binds does nothing
		if !utilfeature.DefaultFeatureGate.Enabled(features.MutatingAdmissionPolicy) {
			return plugin // there are none, and an older Kubernetes that is emulated serves none
		}
		informer = configured.MutatingAdmissionPolicyBindings().Informer()
	case validatingpolicy.PluginName:
		informer = configured.ValidatingAdmissionPolicyBindings().Informer()
	default:
		return plugin
	}
	g, err := newConditional(plugin, informer)
	if err != nil {
		handleError(err)
		return plugin
	}
	c.conditionals = append(c.conditionals, g)
	if name == mutatingpolicy.PluginName {
		c.mutating.Store(g)
	}
	return g.plugin()
}

// plugin returns g as a plugin of the phases of the plugin behind it: upstream's metrics count a
// phase that a plugin has, whatever it does there.
func (g *conditional) plugin() admission.Interface {
	switch {
	case g.validate == nil:
		return mutatingOnly{g}
	case g.admit == nil:
		return validatingOnly{g}
	default:
		return g
	}
}

// mutatingOnly is a conditional plugin that refuses nothing.
type mutatingOnly struct{ g *conditional }

// Handles implements admission.Interface.
func (m mutatingOnly) Handles(operation admission.Operation) bool { return m.g.Handles(operation) }

// Admit implements admission.MutationInterface.
func (m mutatingOnly) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return m.g.Admit(ctx, a, o)
}

// validatingOnly is a conditional plugin that changes nothing.
type validatingOnly struct{ g *conditional }

// Handles implements admission.Interface.
func (v validatingOnly) Handles(operation admission.Operation) bool { return v.g.Handles(operation) }

// Validate implements admission.ValidationInterface.
func (v validatingOnly) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return v.g.Validate(ctx, a, o)
}

func newConditional(plugin admission.Interface, informer cache.SharedIndexInformer) (*conditional, error) {
	g := &conditional{Interface: plugin}
	g.admit, _ = plugin.(admission.MutationInterface)
	g.validate, _ = plugin.(admission.ValidationInterface)
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { g.objects.Add(1) },
		DeleteFunc: func(any) { g.objects.Add(-1) },
	})
	if err != nil {
		return nil, err
	}
	g.synced = registration.HasSyncedChecker().Done()
	return g, nil
}

// idle reports whether no object configures the plugin. Before that is known the plugin is
// called, which waits for the informer itself if it must.
func (g *conditional) idle() bool {
	select {
	case <-g.synced:
		return g.objects.Load() == 0
	default:
		return false
	}
}

// Admit implements admission.MutationInterface.
func (g *conditional) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if g.admit == nil || g.idle() {
		return nil
	}
	return g.admit.Admit(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (g *conditional) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if g.validate == nil || g.idle() {
		return nil
	}
	return g.validate.Validate(ctx, a, o)
}
