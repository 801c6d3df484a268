package cluster

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
)

// testKubelet sends requests as nodes do: one reads the objects that its pods need, creates tokens for them, and
// reports its status. Another node must be denied all of that.
func testKubelet(t *testing.T, r *running, ns string) {
	ctx := t.Context()
	_, err := r.client.CoreV1().Secrets(ns).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "needed"}}, metav1.CreateOptions{})
	must(t, err)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: template(nil).Spec}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "needed"}}}}
	_, err = r.client.CoreV1().Pods(ns).Create(ctx, pod, metav1.CreateOptions{})
	must(t, err)
	eventually(t, "the pod runs", func() error {
		pod, err = r.client.CoreV1().Pods(ns).Get(ctx, "p", metav1.GetOptions{})
		if err == nil && pod.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("the pod is %s", pod.Status.Phase)
		}
		return err
	})
	mine, other := pod.Spec.NodeName, "node-0"
	if mine == other {
		other = "node-1"
	}
	for _, node := range []string{other, mine} {
		kubelet := r.as(t, "system:node:"+node, "system:nodes")
		_, secret := kubelet.CoreV1().Secrets(ns).Get(ctx, "needed", metav1.GetOptions{})
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: pod.UID},
		}}
		token, tokenErr := kubelet.CoreV1().ServiceAccounts(ns).CreateToken(ctx, "default", request, metav1.CreateOptions{})
		_, status := kubelet.CoreV1().Pods(ns).Patch(ctx, "p", "application/merge-patch+json", []byte(`{"status":{"reason":"Told"}}`), metav1.PatchOptions{}, "status")
		_, label := kubelet.CoreV1().Nodes().Patch(ctx, node, "application/merge-patch+json", []byte(`{"metadata":{"labels":{"node-restriction.kubernetes.io/a":"b"}}}`), metav1.PatchOptions{})
		if !apierrors.IsForbidden(label) {
			t.Errorf("%s labels itself: %v", node, label)
		}
		if node == other {
			for what, err := range map[string]error{"the secret": secret, "the token": tokenErr, "the status": status} {
				if !apierrors.IsForbidden(err) {
					t.Errorf("another node and %s: %v", what, err)
				}
			}
			continue
		}
		for what, err := range map[string]error{"the secret": secret, "the token": tokenErr, "the status": status} {
			if err != nil {
				t.Errorf("the node and %s: %v", what, err)
			}
		}
		r.testBound(t, ns, token.Status.Token)
	}
}

// testBound has a token end with the pod that it is bound to.
func (r *running) testBound(t *testing.T, ns, token string) {
	t.Helper()
	client := r.bearer(t, token)
	who := func() error {
		review, err := client.AuthenticationV1().SelfSubjectReviews().Create(context.Background(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err == nil && review.Status.UserInfo.Username != "system:serviceaccount:"+ns+":default" {
			err = fmt.Errorf("the token is of %q", review.Status.UserInfo.Username)
		}
		return err
	}
	must(t, who())
	must(t, r.client.CoreV1().Pods(ns).Delete(t.Context(), "p", metav1.DeleteOptions{}))
	eventually(t, "the token ends with its pod", func() error {
		if err := who(); !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}

// testTokens has a token made for a Secret, which is accepted until the Secret goes, which
// it does with its account.
func testTokens(t *testing.T, r *running, ns string) {
	ctx := t.Context()
	accounts, secrets := r.client.CoreV1().ServiceAccounts(ns), r.client.CoreV1().Secrets(ns)
	_, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
	must(t, err)
	_, err = secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "robot", Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}, metav1.CreateOptions{})
	must(t, err)
	var client kubernetes.Interface
	eventually(t, "the secret has a token", func() error {
		secret, err := secrets.Get(ctx, "robot", metav1.GetOptions{})
		if err == nil && (len(secret.Data["token"]) == 0 || len(secret.Data["ca.crt"]) == 0) {
			err = fmt.Errorf("the secret has %d entries", len(secret.Data))
		}
		if err == nil {
			client = r.bearer(t, string(secret.Data["token"]))
		}
		return err
	})
	if _, err := client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a service account without a role: %v", err)
	}
	must(t, accounts.Delete(ctx, "robot", metav1.DeleteOptions{}))
	eventually(t, "the secret is gone", func() error {
		_, err := secrets.Get(ctx, "robot", metav1.GetOptions{})
		if err == nil {
			return fmt.Errorf("the secret still exists")
		}
		return ignore(err, apierrors.IsNotFound)
	})
	eventually(t, "the token is rejected", func() error { // the authenticator caches the token for ten seconds
		if _, err := client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}

// testCertificates has a request for a certificate signed, which the server accepts.
func testCertificates(t *testing.T, r *running, _ string) {
	ctx := t.Context()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "ann"}}, key)
	must(t, err)
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	must(t, err)
	requests := r.client.CertificatesV1().CertificateSigningRequests()
	request, err := requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "ann"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificatesv1.KubeAPIServerClientSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, requests.Delete(context.Background(), "ann", metav1.DeleteOptions{})) })
	request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test", Message: "by a test",
	}}
	_, err = requests.UpdateApproval(ctx, "ann", request, metav1.UpdateOptions{})
	must(t, err)
	eventually(t, "the request is signed", func() error {
		request, err = requests.Get(ctx, "ann", metav1.GetOptions{})
		if err == nil && len(request.Status.Certificate) == 0 {
			err = fmt.Errorf("status %+v", request.Status)
		}
		return err
	})
	config := rest.AnonymousClientConfig(r.config)
	config.CertData, config.KeyData = request.Status.Certificate, keyPEM
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || review.Status.UserInfo.Username != "ann" {
		t.Errorf("with the certificate: %+v %v", review.Status, err)
	}
}
