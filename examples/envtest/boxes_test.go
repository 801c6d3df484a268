package boxes_test

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	boxes "github.com/larder-io/larder/examples/envtest"
)

// key is the key of the one Box of each test. Tests do not see each other's Boxes.
var key = client.ObjectKey{Namespace: "default", Name: "box"}

func newBox(size int) *boxes.Box {
	return &boxes.Box{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Size: size}
}

// packed waits until the controller has handled the Box.
func packed(t *testing.T) (box boxes.Box, content corev1.ConfigMap) {
	t.Helper()
	eventually(t, func() error {
		if err := suite.admin.Get(t.Context(), key, &box); err != nil {
			return err
		}
		if !box.Status.Packed {
			return fmt.Errorf("not packed: %+v", box)
		}
		return suite.admin.Get(t.Context(), key, &content)
	})
	return box, content
}

// TestControllerPacksBoxes checks that the controller creates the ConfigMap of a Box that was written in v2, and removes its finalizer.
func TestControllerPacksBoxes(t *testing.T) {
	clean(t)
	v2 := &boxes.BoxV2{ObjectMeta: newBox(0).ObjectMeta, Volume: "7"}
	if err := suite.admin.Create(t.Context(), v2); err != nil {
		t.Fatal(err)
	}
	box, content := packed(t)
	if box.Size != 7 || content.Data["size"] != "7" || !metav1.IsControlledBy(&content, &box) {
		t.Errorf("box %+v holds %+v", box, content)
	}
	if err := suite.admin.Get(t.Context(), key, v2); err != nil || v2.Volume != "7" || !v2.Status.Packed {
		t.Errorf("in v2: %+v, %v", v2, err)
	}
	if err := suite.admin.Delete(t.Context(), &box); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if err := suite.admin.Get(t.Context(), key, &box); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the box is still there: %w", err)
		}
		return nil
	})
}

// TestWebhookSetsDefaults checks that the controller's webhook sets a missing size.
func TestWebhookSetsDefaults(t *testing.T) {
	clean(t)
	if err := suite.admin.Create(t.Context(), newBox(0)); err != nil {
		t.Fatal(err)
	}
	if _, content := packed(t); content.Data["size"] != "1" {
		t.Errorf("a Box without a size has the content %+v, want size 1", content.Data)
	}
}

// TestWebhookRefusesBoxes checks that the client receives a webhook's refusal.
func TestWebhookRefusesBoxes(t *testing.T) {
	clean(t)
	err := suite.admin.Create(t.Context(), newBox(101))
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "a box of 101 is too large") {
		t.Errorf("too large a box: %v", err)
	}
}

// TestLeavesEverythingBehind does not clean up: it leaves an object with a finalizer, a terminating
// namespace, and a role.
func TestLeavesEverythingBehind(t *testing.T) {
	for range 3 {
		t.Run("again", func(t *testing.T) {
			clean(t)
			stuck := newBox(2)
			stuck.Finalizers = []string{"example.larder.io/stuck"}
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "left-behind"}}
			role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "left-behind"}}
			for _, object := range []client.Object{stuck, namespace, role} {
				if err := suite.admin.Create(t.Context(), object); err != nil {
					t.Fatal(err)
				}
			}
			packed(t)
			for _, object := range []client.Object{stuck, namespace} {
				if err := suite.admin.Delete(t.Context(), object); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestUsersHaveRBACPermissions checks that envtest's users have client certificates and the rights that RBAC grants.
func TestUsersHaveRBACPermissions(t *testing.T) {
	clean(t)
	user, err := suite.env.AddUser(envtest.User{Name: "reader", Groups: []string{"readers"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := client.New(user.Config(), client.Options{Scheme: suite.env.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.List(t.Context(), &boxes.BoxList{}); !apierrors.IsForbidden(err) {
		t.Errorf("before there is a role: %v", err)
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{boxes.V1.Group}, Resources: []string{"boxes"}, Verbs: []string{"list"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: role.ObjectMeta,
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "readers"}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}}
	for _, object := range []client.Object{role, binding} {
		if err := suite.admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error { return reader.List(t.Context(), &boxes.BoxList{}) })
	kubectl, err := user.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := kubectl.Run("auth", "can-i", "--list")
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if _, err := io.Copy(&text, out); err != nil || !strings.Contains(text.String(), "boxes.example.larder.io") {
		t.Errorf("kubectl auth can-i --list: %s, %v", &text, err)
	}
}

// BenchmarkStart measures how long a control plane takes until envtest calls it ready.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		env := &envtest.Environment{BinaryAssetsDirectory: suite.assets}
		if _, err := env.Start(); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := env.Stop(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkReset measures a reset between two tests, by the number of objects that they leave.
func BenchmarkReset(b *testing.B) {
	for _, objects := range []int{100, 1000} {
		b.Run(fmt.Sprintf("objects=%d", objects), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				for i := range objects {
					object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("object-", i), Finalizers: []string{"example.larder.io/stuck"}}}
					if err := suite.admin.Create(b.Context(), object); err != nil {
						b.Fatal(err)
					}
				}
				b.StartTimer()
				if err := post(b.Context(), suite.env.Config, "/larder/checkpoints/clean/reset"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
