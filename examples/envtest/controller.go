package boxes

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// finalizer keeps a Box until the controller has handled its deletion.
const finalizer = "example.larder.io/box"

// Reconciler creates a ConfigMap for each Box.
type Reconciler struct{ client.Client }

// SetupWithManager adds the reconciler and the webhooks of Boxes to m. Metrics have name.
func (r *Reconciler) SetupWithManager(m ctrl.Manager, name string) error {
	skip := true // several tests in one process create a controller with the same name
	if err := ctrl.NewControllerManagedBy(m).Named(name).For(&Box{}).Owns(&corev1.ConfigMap{}).
		WithOptions(controller.Options{SkipNameValidation: &skip}).Complete(r); err != nil {
		return err
	}
	return ctrl.NewWebhookManagedBy(m, &Box{}).WithDefaulter(defaulter{}).WithValidator(validator{}).Complete()
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var box Box
	if err := r.Get(ctx, req.NamespacedName, &box); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !box.DeletionTimestamp.IsZero() {
		controllerutil.RemoveFinalizer(&box, finalizer)
		return ctrl.Result{}, r.Update(ctx, &box)
	}
	if controllerutil.AddFinalizer(&box, finalizer) {
		if err := r.Update(ctx, &box); err != nil {
			return ctrl.Result{}, err
		}
	}
	content := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: box.Namespace, Name: box.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, content, func() error {
		content.Data = map[string]string{"size": strconv.Itoa(box.Size)}
		return controllerutil.SetControllerReference(&box, content, r.Scheme())
	})
	if err != nil || box.Status.Packed {
		return ctrl.Result{}, err
	}
	box.Status.Packed = true
	return ctrl.Result{}, r.Status().Update(ctx, &box)
}

// defaulter sets the size of a Box that has none.
type defaulter struct{}

func (defaulter) Default(_ context.Context, box *Box) error {
	if box.Size == 0 {
		box.Size = 1
	}
	return nil
}

// validator rejects Boxes that are too large.
type validator struct{}

func (validator) ValidateCreate(_ context.Context, box *Box) (admission.Warnings, error) {
	if box.Size > 100 {
		return nil, fmt.Errorf("a box of %d is too large", box.Size)
	}
	return nil, nil
}

func (v validator) ValidateUpdate(ctx context.Context, _, box *Box) (admission.Warnings, error) {
	return v.ValidateCreate(ctx, box)
}

func (validator) ValidateDelete(context.Context, *Box) (admission.Warnings, error) { return nil, nil }
