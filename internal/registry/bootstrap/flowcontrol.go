package bootstrap

import (
	"context"
	"slices"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	defaults "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	flowcontrolclient "k8s.io/client-go/kubernetes/typed/flowcontrol/v1"
	flowcontrollisters "k8s.io/client-go/listers/flowcontrol/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/ensurer"
)

// flowControlInterval is how soon changes of mandatory objects are undone.
const flowControlInterval = time.Minute

// keepFlowControl makes flow schemas and priority levels and undoes changes of the
// mandatory ones: kubernetes pkg/registry/flowcontrol/rest.
func (c *Config) keepFlowControl(ctx context.Context, ready func()) error {
	if err := retry(ctx, 5*time.Minute, c.ensureFlowControl); err != nil {
		return err
	}
	ready()
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := c.ensureFlowControl(ctx); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Cannot keep the configuration of flow control")
		}
	}, flowControlInterval)
	return nil
}

func (c *Config) ensureFlowControl(ctx context.Context) error {
	client := c.Client.FlowcontrolV1()
	levels := ensurer.NewPriorityLevelConfigurationOps(client.PriorityLevelConfigurations(), liveLevels{ctx: ctx, client: client})
	schemas := ensurer.NewFlowSchemaOps(client.FlowSchemas(), liveSchemas{ctx: ctx, client: client})

	suggestLevel := ensurer.NewSuggestedEnsureStrategy[*flowcontrolv1.PriorityLevelConfiguration]()
	requireLevel := ensurer.NewMandatoryEnsureStrategy[*flowcontrolv1.PriorityLevelConfiguration]()
	suggestSchema := ensurer.NewSuggestedEnsureStrategy[*flowcontrolv1.FlowSchema]()
	requireSchema := ensurer.NewMandatoryEnsureStrategy[*flowcontrolv1.FlowSchema]()

	tasks := ensureAll(nil, levels, defaults.SuggestedPriorityLevelConfigurations, suggestLevel)
	tasks = ensureAll(tasks, schemas, defaults.SuggestedFlowSchemas, suggestSchema)
	if err := inParallel(ctx, tasks); err != nil {
		return err
	}
	tasks = ensureAll(nil, levels, defaults.MandatoryPriorityLevelConfigurations, requireLevel)
	tasks = ensureAll(tasks, schemas, defaults.MandatoryFlowSchemas, requireSchema)
	if err := inParallel(ctx, tasks); err != nil {
		return err
	}
	allSchemas := slices.Concat(defaults.MandatoryFlowSchemas, defaults.SuggestedFlowSchemas)
	if err := ensurer.RemoveUnwantedObjects(ctx, schemas, allSchemas); err != nil {
		return err
	}
	allLevels := slices.Concat(defaults.MandatoryPriorityLevelConfigurations, defaults.SuggestedPriorityLevelConfigurations)
	return ensurer.RemoveUnwantedObjects(ctx, levels, allLevels)
}

// ensureAll appends one task for each object.
func ensureAll[T interface {
	comparable
	metav1.Object
	runtime.Object
}](tasks []task, ops ensurer.ObjectOps[T], objects []T, strategy ensurer.EnsureStrategy[T]) []task {
	for _, o := range objects {
		tasks = append(tasks, func(ctx context.Context) error {
			return ensurer.EnsureConfiguration(ctx, ops, o, strategy)
		})
	}
	return tasks
}

// liveLevels and liveSchemas read the server instead of an informer's copy of it:
// it answers from its cache, and no informer has to be waited for.
type liveLevels struct {
	flowcontrollisters.PriorityLevelConfigurationListerExpansion
	ctx    context.Context
	client flowcontrolclient.FlowcontrolV1Interface
}

// Get implements flowcontrollisters.PriorityLevelConfigurationLister.
func (l liveLevels) Get(name string) (*flowcontrolv1.PriorityLevelConfiguration, error) {
	return l.client.PriorityLevelConfigurations().Get(l.ctx, name, metav1.GetOptions{})
}

// List implements flowcontrollisters.PriorityLevelConfigurationLister.
func (l liveLevels) List(selector labels.Selector) ([]*flowcontrolv1.PriorityLevelConfiguration, error) {
	list, err := l.client.PriorityLevelConfigurations().List(l.ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	return pointers(list.Items), nil
}

type liveSchemas struct {
	flowcontrollisters.FlowSchemaListerExpansion
	ctx    context.Context
	client flowcontrolclient.FlowcontrolV1Interface
}

// Get implements flowcontrollisters.FlowSchemaLister.
func (l liveSchemas) Get(name string) (*flowcontrolv1.FlowSchema, error) {
	return l.client.FlowSchemas().Get(l.ctx, name, metav1.GetOptions{})
}

// List implements flowcontrollisters.FlowSchemaLister.
func (l liveSchemas) List(selector labels.Selector) ([]*flowcontrolv1.FlowSchema, error) {
	list, err := l.client.FlowSchemas().List(l.ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	return pointers(list.Items), nil
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}
