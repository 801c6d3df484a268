package relay

import (
	"crypto/rand"
	"crypto/rsa"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"

	"github.com/larder-io/larder/internal/e2e/e2etest"
	"github.com/larder-io/larder/internal/proctest"
)

var (
	larder = flag.String("larder", "", "program to test; built if not given")
	stock  = flag.String("stock", "", "kube-apiserver to use as the upstream; Larder if not given")
)

func TestMain(m *testing.M) {
	proctest.ShortTemp()
	flag.Parse()
	if testing.Short() {
		fmt.Fprintln(os.Stderr, "skipped with -short: builds a server and runs it behind relays")
		return
	}
	// Tests mostly wait, so more of them than processors can run at once.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	remove, err := e2etest.Build(larder)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	remove()
	os.Exit(code)
}

// upstream is the API server that a relay follows.
type upstream struct {
	*proctest.Process
	config *rest.Config // the administrator's
	dir    string
	port   int
	args   []string // additional arguments for the next start
}

// startUpstream starts an upstream and waits until it is ready.
func startUpstream(t *testing.T) *upstream {
	t.Helper()
	u := &upstream{dir: filepath.Join(t.TempDir(), "data"), port: proctest.Port(t)}
	if *stock != "" {
		u.startStock(t)
		return u
	}
	u.Process = proctest.New(t, "the upstream", func() *exec.Cmd {
		return exec.Command(*larder, append([]string{"dev", "--data-dir", u.dir, "--secure-port", strconv.Itoa(u.port), "--unsafe-no-fsync"}, u.args...)...)
	})
	u.start(t)
	u.config = e2etest.Config(t, filepath.Join(u.dir, "admin.kubeconfig"))
	return u
}

// startStock starts kube-apiserver, the program of the flag, on an etcd.
func (u *upstream) startStock(t *testing.T) {
	t.Helper()
	ports := proctest.Ports(t, 2)
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	etcd := proctest.New(t, "etcd", func() *exec.Cmd {
		return exec.Command(*larder, "etcd", "--data-dir", filepath.Join(u.dir, "etcd"), "--unsafe-no-fsync", "--listen-client-urls", client,
			"--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	})
	if err := etcd.Start(); err != nil {
		t.Fatal(err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	signing, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(u.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	tokens, keys := filepath.Join(u.dir, "tokens"), filepath.Join(u.dir, "sa.key")
	for file, content := range map[string][]byte{tokens: []byte("administrator,admin,1,system:masters\n"), keys: signing} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u.Process = proctest.New(t, "the upstream", func() *exec.Cmd {
		return exec.Command(*stock, append([]string{"--etcd-servers", client, "--cert-dir", u.dir, "--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(u.port),
			"--token-auth-file", tokens, "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.0.0.0/24",
			"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-signing-key-file", keys, "--service-account-key-file", keys}, u.args...)...)
	})
	u.config = &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", u.port), BearerToken: "administrator", QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(u.dir, "apiserver.crt")}}
	u.start(t)
}

func (u *upstream) start(t *testing.T) {
	t.Helper()
	if err := u.Start(); err != nil {
		t.Fatal(err)
	}
	if *stock == "" {
		u.Await(t, "ready after")
		return
	}
	u.Eventually(t, "the upstream is ready", func() error {
		client, err := kubernetes.NewForConfig(u.config) // the certificate may not exist yet
		if err == nil {
			_, err = client.RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
		}
		return err
	})
}

func (u *upstream) client(t *testing.T) kubernetes.Interface {
	return kubernetes.NewForConfigOrDie(u.config)
}

// token returns a token of a new service account with the given rights.
func (u *upstream) token(t *testing.T, name string, rules ...rbacv1.PolicyRule) string {
	t.Helper()
	ctx, client := t.Context(), u.client(t)
	meta := metav1.ObjectMeta{Name: name}
	if _, err := client.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: name}},
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	u.awaitRight(t, "system:serviceaccount:default:"+name, rules[0])
	made, err := client.CoreV1().ServiceAccounts("default").CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made.Status.Token
}

// awaitRight waits until the upstream's authorizer has seen that a service account has the rights of a rule, and
// earlier changes.
func (u *upstream) awaitRight(t *testing.T, account string, rule rbacv1.PolicyRule) {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: account, ResourceAttributes: &authorizationv1.ResourceAttributes{
		Verb: rule.Verbs[0], Group: rule.APIGroups[0], Resource: rule.Resources[0],
	}}}
	u.Eventually(t, "the upstream applies the rights of "+account, func() error {
		got, err := u.client(t).AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err == nil && !got.Status.Allowed {
			err = fmt.Errorf("denied: %+v", got.Status)
		}
		return err
	})
}

// allowed returns a rule for resources of all groups.
func allowed(verbs, resources []string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: verbs, APIGroups: []string{"*"}, Resources: resources}
}

// apply creates the objects of a file in docs/relay.md, and waits until the upstream applies the relay's rights.
// Existing objects stay.
func (u *upstream) apply(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "relay.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "cat > "+file+" <<'EOF'\n")
	manifest, _, ended := strings.Cut(after, "\nEOF\n")
	if !found || !ended {
		t.Fatalf("docs/relay.md has no %s", file)
	}
	ctx, client := t.Context(), u.client(t)
	var rule rbacv1.PolicyRule
	for part := range strings.SplitSeq(manifest, "\n---\n") {
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(part), nil, nil)
		if err != nil {
			t.Fatalf("%v: %s", err, part)
		}
		switch o := object.(type) {
		case *corev1.Namespace:
			_, err = client.CoreV1().Namespaces().Create(ctx, o, metav1.CreateOptions{})
		case *corev1.ServiceAccount:
			_, err = client.CoreV1().ServiceAccounts(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
		case *rbacv1.ClusterRole:
			rule = o.Rules[0]
			_, err = client.RbacV1().ClusterRoles().Create(ctx, o, metav1.CreateOptions{})
		case *rbacv1.ClusterRoleBinding:
			_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, o, metav1.CreateOptions{})
		default:
			t.Fatalf("%s contains a %T", file, o)
		}
		if ignoreExists(err) != nil {
			t.Fatal(err)
		}
	}
	u.awaitRight(t, "system:serviceaccount:larder-relay:relay", rule)
}

// relay is a process that follows an upstream.
type relay struct {
	*proctest.Process
	url string
}

// startRelay starts a relay, whose identity has the rights from docs/relay.md, and waits until it is ready.
func (u *upstream) startRelay(t *testing.T, args ...string) *relay {
	t.Helper()
	return startRelay(t, append([]string{"--upstream", u.kubeconfig(t)}, args...)...)
}

// kubeconfig writes a kubeconfig for a relay, whose identity has only the rights from docs/relay.md, and returns its
// path.
func (u *upstream) kubeconfig(t *testing.T) string {
	t.Helper()
	u.apply(t, "relay.yaml")
	made, err := u.client(t).CoreV1().ServiceAccounts("larder-relay").CreateToken(t.Context(), "relay", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "relay.kubeconfig")
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"upstream": {Server: u.config.Host, CertificateAuthority: u.config.CAFile, CertificateAuthorityData: u.config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"relay": {Token: made.Status.Token}},
		Contexts:       map[string]*clientcmdapi.Context{"upstream": {Cluster: "upstream", AuthInfo: "relay"}},
		CurrentContext: "upstream",
	}, kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// startRelay starts a relay with the arguments and waits until it is ready.
func startRelay(t *testing.T, args ...string) *relay {
	t.Helper()
	port, temp := proctest.Port(t), t.TempDir()
	r := &relay{url: fmt.Sprintf("https://127.0.0.1:%d", port)}
	r.Process = proctest.New(t, "the relay", func() *exec.Cmd {
		cmd := exec.Command(*larder, append([]string{"relay", "--secure-port", strconv.Itoa(port)}, args...)...)
		cmd.Env = append(os.Environ(), "TMPDIR="+temp)
		return cmd
	})
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	r.Await(t, "relay of")
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 { // a killed relay would leave some
		t.Errorf("temporary files: %v, %v", left, err)
	}
	return r
}

// as returns the configuration of a client of r with a token.
func (r *relay) as(token string) *rest.Config {
	return &rest.Config{Host: r.url, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"of": "test"}}, Data: map[string]string{"a": "b"}}
}

func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
