package bootstrap

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
)

// namespaceInterval is how often deleted system namespaces are recreated.
const namespaceInterval = time.Minute

// keepNamespaces creates missing system namespaces, as kubernetes
// pkg/controlplane/controller/systemnamespaces does.
func (c *Config) keepNamespaces(ctx context.Context, ready func()) error {
	if !c.keepTrying(ctx, ready, "system namespaces", c.ensureNamespaces) {
		return ctx.Err()
	}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := c.ensureNamespaces(ctx); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Cannot maintain the system namespaces")
		}
	}, namespaceInterval)
	return nil
}

func (c *Config) ensureNamespaces(ctx context.Context) error {
	namespaces := c.Client.CoreV1().Namespaces()
	var tasks []task
	for _, name := range []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, metav1.NamespaceDefault} {
		tasks = append(tasks, func(ctx context.Context) error {
			return createMissing(ctx, namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		})
	}
	return inParallel(ctx, tasks)
}

// ensurePriorityClasses creates the system's priority classes, as kubernetes
// pkg/registry/scheduling/rest does.
func (c *Config) ensurePriorityClasses(ctx context.Context) error {
	classes := c.Client.SchedulingV1().PriorityClasses()
	return retry(ctx, hookTimeout, func(ctx context.Context) error {
		var tasks []task
		for _, class := range schedulingv1.SystemPriorityClasses() {
			tasks = append(tasks, func(ctx context.Context) error { return createMissing(ctx, classes, class) })
		}
		return inParallel(ctx, tasks)
	})
}

// creator is the part of a typed client that createMissing needs.
type creator[T any] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
	Create(ctx context.Context, object T, options metav1.CreateOptions) (T, error)
}

// createMissing creates object unless one of its name exists.
func createMissing[T metav1.Object](ctx context.Context, client creator[T], object T) error {
	if _, err := client.Get(ctx, object.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	_, err := client.Create(ctx, object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
