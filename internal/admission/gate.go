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

// gate is a plugin that is called only while there are objects that configure it. Gate and
// plugin learn of the objects from the same informer, so that one is as current as the
// other.
type gate struct {
	admission.Interface
	admit    admission.MutationInterface   // nil if the plugin changes nothing
	validate admission.ValidationInterface // nil if the plugin refuses nothing

	synced  <-chan struct{} // closed once count is that of all objects there were
	objects atomic.Int64
}

// guard puts a gate before the plugins of policies and webhooks, as long as their
// configuration can come from nowhere but the API.
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
	g, err := newGate(plugin, informer)
	if err != nil {
		handleError(err)
		return plugin
	}
	c.gates = append(c.gates, g)
	if name == mutatingpolicy.PluginName {
		c.mutating.Store(g)
	}
	return g.plugin()
}

// plugin returns g as a plugin of the phases of the plugin behind it: upstream's metrics count a
// phase that a plugin has, whatever it does there.
func (g *gate) plugin() admission.Interface {
	switch {
	case g.validate == nil:
		return mutatingGate{g}
	case g.admit == nil:
		return validatingGate{g}
	default:
		return g
	}
}

// mutatingGate is a gate that refuses nothing.
type mutatingGate struct{ g *gate }

// Handles implements admission.Interface.
func (m mutatingGate) Handles(operation admission.Operation) bool { return m.g.Handles(operation) }

// Admit implements admission.MutationInterface.
func (m mutatingGate) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return m.g.Admit(ctx, a, o)
}

// validatingGate is a gate that changes nothing.
type validatingGate struct{ g *gate }

// Handles implements admission.Interface.
func (v validatingGate) Handles(operation admission.Operation) bool { return v.g.Handles(operation) }

// Validate implements admission.ValidationInterface.
func (v validatingGate) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return v.g.Validate(ctx, a, o)
}

func newGate(plugin admission.Interface, informer cache.SharedIndexInformer) (*gate, error) {
	g := &gate{Interface: plugin}
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
func (g *gate) idle() bool {
	select {
	case <-g.synced:
		return g.objects.Load() == 0
	default:
		return false
	}
}

// Admit implements admission.MutationInterface.
func (g *gate) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if g.admit == nil || g.idle() {
		return nil
	}
	return g.admit.Admit(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (g *gate) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if g.validate == nil || g.idle() {
		return nil
	}
	return g.validate.Validate(ctx, a, o)
}
