package boxes_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	boxes "github.com/larder-io/larder/examples/envtest"
)

// suite holds what the tests share: one control plane and one manager.
var suite struct {
	assets string
	env    *envtest.Environment
	admin  client.Client // reads from the server, not from a cache
}

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run starts the control plane and the manager, runs the tests, and stops both.
func run(m *testing.M) (code int, err error) {
	if suite.assets, err = os.MkdirTemp("", "assets-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(suite.assets)
	if err := assets(suite.assets); err != nil {
		return 1, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), boxes.AddToScheme(scheme)); err != nil {
		return 1, err
	}
	suite.env = &envtest.Environment{
		BinaryAssetsDirectory: suite.assets,
		Scheme:                scheme,
		CRDInstallOptions:     envtest.CRDInstallOptions{Paths: []string{filepath.Join("config", "boxes.yaml")}, ErrorIfPathMissing: true},
		WebhookInstallOptions: envtest.WebhookInstallOptions{Paths: []string{filepath.Join("config", "webhooks.yaml")}},

		ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience,
	}
	suite.env.ControlPlane.GetAPIServer().Configure().Set("checkpoints", "true").Set("faults", "true") // Larder's own
	config, err := suite.env.Start()
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, suite.env.Stop()) }()
	if suite.admin, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return 1, err
	}
	hooks := suite.env.WebhookInstallOptions
	managed := rest.CopyConfig(config)
	managed.UserAgent = managerAgent
	manager, err := ctrl.NewManager(managed, ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: hooks.LocalServingHost, Port: hooks.LocalServingPort, CertDir: hooks.LocalServingCertDir}),
	})
	if err != nil {
		return 1, err
	}
	if err := (&boxes.Reconciler{Client: manager.GetClient()}).SetupWithManager(manager, "boxes"); err != nil {
		return 1, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	defer func() { cancel(); err = errors.Join(err, <-ended) }()
	if !manager.GetCache().WaitForCacheSync(ctx) {
		return 1, errors.New("the manager's cache does not sync")
	}
	served := func(context.Context) (bool, error) {
		return manager.GetWebhookServer().StartedChecker()(nil) == nil, nil
	}
	if err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, patience, true, served); err != nil {
		return 1, fmt.Errorf("webhooks are not served: %w", err)
	}
	if err := checkpoint(ctx, config, "clean"); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// patience bounds a wait.
const patience = 2 * time.Minute

// eventually waits until fn returns nil.
func eventually(t *testing.T, fn func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		last = fn()
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%v: %v", err, last)
	}
}
