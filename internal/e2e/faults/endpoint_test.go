package faults

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/larder-io/larder/httpapi/faults"
)

// TestOnlyAdministratorsInjectFaults checks that users without rights are rejected, and that a server without --faults
// does not serve the path.
func TestOnlyAdministratorsInjectFaults(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("somebody,somebody,somebody\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, "dev", "--token-auth-file", tokens)
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete} {
		c := s.as("test", 2)
		c.CertData, c.KeyData, c.BearerToken = nil, nil, "somebody"
		err := kubernetes.NewForConfigOrDie(c).CoreV1().RESTClient().Verb(method).AbsPath(faults.Path, "r").Do(t.Context()).Error()
		if err == nil || !strings.Contains(err.Error(), "cannot "+strings.ToLower(method)+" path") {
			t.Errorf("%s: error %v, want 403", method, err)
		}
	}
	plain := serve(t, "serve")
	if _, err := plain.faults.State(t.Context()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("without --faults: error %v, want 404", err)
	}
}

// TestServersOwnRequestsMeetNoFaults checks that the controllers of larder dev create a namespace's service account,
// although a rule rejects such writes of all clients.
func TestServersOwnRequestsMeetNoFaults(t *testing.T) {
	s := serve(t, "dev")
	s.set(t, faults.Rule{Name: "r", Match: faults.Match{Resource: "serviceaccounts"}, Refuse: 500})
	client := kubernetes.NewForConfigOrDie(s.config)
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().ServiceAccounts("a").Get(t.Context(), "default", metav1.GetOptions{}); err == nil || err.Error() != "etcdserver: leader changed" {
		t.Errorf("a client's write got %v, want the rule's status 500", err)
	}
	if err := s.faults.Clear(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	s.Eventually(t, "the service account exists", func() error {
		_, err := client.CoreV1().ServiceAccounts("a").Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
}
