package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	defaults "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	clientcache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/ensurer"
)

const (
	// flowControlLimit limits the time to create the objects (kubernetes pkg/registry/flowcontrol/rest).
	flowControlLimit = 5 * time.Minute
	// flowControlInterval is how often changes of mandatory objects are reverted.
	flowControlInterval = time.Minute
)

// newFlowControl requests the informers of flow control. It returns the hook that creates flow schemas and priority
// levels and reverts changes of the mandatory ones, as kubernetes pkg/registry/flowcontrol/rest does.
func (c *Config) newFlowControl() func(context.Context, func()) error {
	informers := c.Informers.Flowcontrol().V1()
	synced := []clientcache.DoneChecker{
		informers.PriorityLevelConfigurations().Informer().HasSyncedChecker(), informers.FlowSchemas().Informer().HasSyncedChecker()}
	return func(ctx context.Context, ready func()) error {
		bounded, cancel := context.WithTimeout(ctx, flowControlLimit)
		defer cancel()
		if !clientcache.WaitFor(bounded, "", synced...) {
			return cmp.Or(ctx.Err(), errors.New("the informers of flow control have not synced"))
		}
		if err := retry(bounded, flowControlLimit, c.ensureFlowControl); err != nil {
			return err
		}
		ready()
		// Wait one interval first: the informers may not have the objects that were just created.
		_ = wait.PollUntilContextCancel(ctx, flowControlInterval, false, func(ctx context.Context) (bool, error) {
			if err := c.ensureFlowControl(ctx); err != nil && ctx.Err() == nil {
				klog.ErrorS(err, "Cannot maintain the configuration of flow control")
			}
			return false, nil
		})
		return nil
	}
}

func (c *Config) ensureFlowControl(ctx context.Context) error {
	client, informers := c.Client.FlowcontrolV1(), c.Informers.Flowcontrol().V1()
	levels := ensurer.NewPriorityLevelConfigurationOps(client.PriorityLevelConfigurations(), informers.PriorityLevelConfigurations().Lister())
	schemas := ensurer.NewFlowSchemaOps(client.FlowSchemas(), informers.FlowSchemas().Lister())
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
