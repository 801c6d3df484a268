package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/internal/proctest"
)

// TestKubeletReadsWhatItsPodsNeed checks that a kubelet can read its own pods, and the objects that they need while
// they are on its node. The pods may have been created before the server started.
func TestKubeletReadsWhatItsPodsNeed(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--authorization-mode=Node,RBAC", "--token-auth-file", tokens(t))
	ctx, core := t.Context(), p.client().CoreV1()
	for _, name := range []string{"needed", "other"} {
		if _, err := core.Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := core.ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
		NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "needed"}}}},
	}}
	proctest.Eventually(t, "the pod is created", func() error {
		_, err := core.Pods("default").Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
	read := func(token, secret string) error {
		_, err := p.as(token).CoreV1().Secrets("default").Get(ctx, secret, metav1.GetOptions{})
		return err
	}
	forbidden := func(what string, err error) {
		t.Helper()
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: error %v, want 403", what, err)
		}
	}
	for _, when := range []string{"at first", "after a restart"} {
		proctest.Eventually(t, "n1 reads the object that its pod needs, "+when, func() error { return read("n1-token", "needed") })
		forbidden("n1 reads another secret "+when, read("n1-token", "other"))
		forbidden("n2 reads the secret "+when, read("n2-token", "needed"))
		kubelet := p.as("n1-token").CoreV1()
		if own, err := kubelet.Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n1"}); err != nil || len(own.Items) != 1 {
			t.Errorf("n1's list of its pods %s: %v", when, err)
		}
		_, err := kubelet.Pods("").List(ctx, metav1.ListOptions{})
		forbidden("n1 lists all pods "+when, err)
		if strings.HasPrefix(when, "at") {
			if err := p.Terminate(t); err != nil {
				t.Fatal(err)
			}
			p.start()
			p.awaitReady()
		}
	}
	grace := int64(0)
	if err := core.Pods("default").Delete(ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "n1 may not read the object of a deleted pod", func() error {
		if err := read("n1-token", "needed"); !apierrors.IsForbidden(err) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}

// TestAcceptedCAsArePublished checks that the CAs whose certificates a server accepts are published for other API
// servers.
func TestAcceptedCAsArePublished(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync")
	want, err := os.ReadFile(filepath.Join(p.dir, "pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "the ConfigMap has the CA", func() error {
		published, err := p.client().CoreV1().ConfigMaps("kube-system").Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{})
		if err == nil && published.Data["client-ca-file"] != string(want) {
			err = fmt.Errorf("got %q", published.Data)
		}
		return err
	})
}
