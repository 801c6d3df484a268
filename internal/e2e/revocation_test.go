package e2e_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/cert"

	"github.com/larder-io/larder/internal/proctest"
)

// watchOf opens a watch of the ConfigMaps in default and receives one event.
func watchOf(t *testing.T, client kubernetes.Interface) watch.Interface {
	t.Helper()
	var w watch.Interface
	proctest.Eventually(t, "the watch begins", func() (err error) {
		w, err = client.CoreV1().ConfigMaps("default").Watch(context.Background(), metav1.ListOptions{FieldSelector: "metadata.name=one"})
		return err
	})
	t.Cleanup(w.Stop)
	if event := <-w.ResultChan(); event.Type != watch.Added {
		t.Fatalf("got %+v", event)
	}
	return w
}

// awaitEnd waits for the end of w, which must send nothing more, not even an error.
func awaitEnd(t *testing.T, what string, w watch.Interface) {
	t.Helper()
	began := time.Now()
	select {
	case event, ok := <-w.ResultChan():
		if ok {
			t.Errorf("%s: got %+v", what, event)
		}
		t.Logf("%s: the watch ended after %v", what, time.Since(began).Round(time.Millisecond))
	case <-time.After(proctest.Patience):
		t.Errorf("%s: the watch did not end", what)
	}
}

// open returns an error if w has ended.
func open(w watch.Interface) error {
	select {
	case event, ok := <-w.ResultChan():
		if !ok {
			return errors.New("it has ended")
		}
		return errors.New("got " + string(event.Type))
	default:
		return nil
	}
}

// letRead creates a binding that lets a subject read the ConfigMaps in default.
func (p *process) letRead(t *testing.T, binding string, subject rbacv1.Subject) {
	t.Helper()
	_, err := p.client().RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: binding}, Subjects: []rbacv1.Subject{subject},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-view"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// robot creates a service account that may read, and returns a client with a token that is bound to a secret of that
// name.
func (p *process) robot(t *testing.T, name string) kubernetes.Interface {
	t.Helper()
	core := p.client().CoreV1()
	if _, err := core.ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	secret, err := core.Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token, err := core.ServiceAccounts("default").CreateToken(t.Context(), name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: name, UID: secret.UID}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.letRead(t, name, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: name})
	return p.as(token.Status.Token)
}

// TestWatchesEndWithTheirRights checks that watches end when their user loses the right, in any way, and that other
// watches continue.
func TestWatchesEndWithTheirRights(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--authorization-mode=RBAC", "--token-auth-file", tokens(t))
	admin := p.client()
	if _, err := admin.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.letRead(t, "devs", rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "devs"})
	alice, byAccount, bySecret := p.as("alice-token"), p.robot(t, "by-account"), p.robot(t, "by-secret")
	ofAdmin, ofAlice, ofAccount, ofSecret := watchOf(t, admin), watchOf(t, alice), watchOf(t, byAccount), watchOf(t, bySecret)

	if err := admin.RbacV1().RoleBindings("default").Delete(t.Context(), "devs", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, "the binding is deleted", ofAlice)
	if err := admin.CoreV1().ServiceAccounts("default").Delete(t.Context(), "by-account", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, "the service account is deleted", ofAccount)
	if err := errors.Join(open(ofSecret), open(ofAdmin)); err != nil {
		t.Errorf("a watch of a user who keeps the rights: %v", err)
	}
	if err := admin.CoreV1().Secrets("default").Delete(t.Context(), "by-secret", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, "the token's secret is deleted", ofSecret)

	other, _, err := cert.GenerateSelfSignedCertKey("other", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "pki", "ca.crt"), other, 0o600); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, "the CA of the certificate is no longer trusted", ofAdmin)
}
