package server

import (
	"context"
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/larder-io/larder/cmd/larder/internal/testcontrollers"
)

// buildControllers creates the controllers that tests need, if the configuration enables them. Pods trust all
// certificates in the file of the serving certificate: the CA that signed it follows it.
func (s *Server) buildControllers() error {
	if !s.config.TestControllers {
		return nil
	}
	trusted, err := os.ReadFile(s.id.certFile)
	if err != nil {
		return fmt.Errorf("server: serving certificate: %w", err)
	}
	s.parts.controllers, err = testcontrollers.New(testcontrollers.Config{Client: s.parts.loopback, RootCA: trusted})
	return err
}

// awaitControllers blocks until pods can be admitted, or ctx ends. It warns if a
// kube-controller-manager runs. It retries while the store does not respond.
func (s *Server) awaitControllers(ctx context.Context) error {
	controllers := s.parts.controllers
	if controllers == nil {
		return nil
	}
	var rival string
	var err error
	_ = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		rival, err = testcontrollers.ControllerManagerHolder(ctx, s.parts.client)
		return err == nil, nil
	})
	if err != nil {
		return err
	}
	if rival != "" {
		s.progress.printf("warning: kube-controller-manager %s also runs in this cluster: --test-controllers must not run beside it", rival)
	}
	return controllers.WaitReady(ctx)
}
