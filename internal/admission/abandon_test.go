package admission

import (
	"context"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
)

// admitting lets everything pass.
type admitting struct{ admission.Interface }

func (admitting) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return nil
}

func (admitting) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return nil
}

// TestServersThatEndRefuseWritesThatWait checks that writes that wait for informers fail when the server ends, and
// that writes that need not wait pass.
func TestServersThatEndRefuseWritesThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Chain{admit: admitting{}, validate: admitting{}, open: make(chan struct{}), abandoned: make(chan struct{})}
		a := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, "n", "x", schema.GroupVersionResource{Resource: "pods"}, "", admission.Create, nil, false, nil)
		ended := make(chan error, 2)
		go func() { ended <- c.Admit(t.Context(), a, nil) }()
		go func() { ended <- c.Validate(t.Context(), a, nil) }()
		synctest.Wait()
		if len(ended) > 0 {
			t.Fatal("a write does not wait")
		}
		c.Abandon()
		c.Abandon()
		for range 2 {
			if err := <-ended; !apierrors.IsForbidden(err) {
				t.Errorf("got %v", err)
			}
		}
		c.Open()
		if c.Admit(t.Context(), a, nil) != nil || c.Validate(t.Context(), a, nil) != nil {
			t.Error("refused though it need not wait")
		}
	})
}
