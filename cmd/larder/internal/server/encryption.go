package server

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	encryptionmetrics "k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	"k8s.io/apiserver/pkg/storage/value"
)

// encryption holds upstream's transformers for the EncryptionConfiguration. The zero value encrypts
// nothing.
type encryption struct {
	transformers value.ResourceTransformers
	checks       []healthz.HealthChecker // of the KMS plugins; not in /livez
}

// buildEncryption reads the file. It starts the layer that keeps connections to KMS plugins open. If
// configured, the layer also reloads the file.
func (s *Server) buildEncryption(ctx context.Context) error {
	file, reload, e := s.config.Etcd.EncryptionProviderConfigFilepath, s.config.Etcd.EncryptionProviderConfigAutomaticReload, &s.parts.encryption
	if file == "" {
		return nil
	}
	lasting, end := context.WithCancel(context.WithoutCancel(ctx))
	loaded, err := encryptionconfig.LoadEncryptionConfig(lasting, file, reload, serverID())
	if err != nil {
		end()
		return fmt.Errorf("server: --encryption-provider-config: %w", err)
	}
	encryptionmetrics.RegisterMetrics()
	encryptionmetrics.RecordEncryptionConfigLastConfigInfo(serverID(), loaded.EncryptionFileContentHash)
	e.transformers, e.checks = encryptionconfig.StaticTransformers(loaded.Transformers), loaded.HealthChecks
	run := func(ctx context.Context) { <-ctx.Done() }
	if reload {
		dynamic := encryptionconfig.NewDynamicTransformers(loaded.Transformers, loaded.HealthChecks[0], end, loaded.KMSCloseGracePeriod)
		e.transformers, e.checks = dynamic, []healthz.HealthChecker{dynamic}
		run = controller.NewDynamicEncryptionConfiguration("encryption-provider-config-automatic-reload-controller",
			file, dynamic, loaded.EncryptionFileContentHash, serverID()).Run
	}
	s.layers.Start(ctx, "encryption", func(ctx context.Context) error {
		defer end()
		run(ctx)
		return ctx.Err()
	})
	return nil
}
