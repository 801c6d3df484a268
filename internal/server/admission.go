package server

import (
	"context"

	"github.com/larder-io/larder/internal/admission"
)

// buildAdmission makes the admission plugins and starts their layer at once: upstream's
// plugins have goroutines from their construction on.
func (s *Server) buildAdmission(ctx context.Context) (err error) {
	p := &s.parts
	if p.webhooks, err = admission.NewWebhooks(p.registry, p.loopback, s.egress); err != nil {
		return err
	}
	p.admission, err = admission.Load(admission.Config{
		Options: s.config.Admission, Registry: p.registry, ClientConfig: p.loopback, Client: p.client,
		Informers: p.informers, InformersEnd: p.unfollow, Authorizer: p.auth.Authorizer, Webhooks: p.webhooks,
		APIResources: s.resources,
	})
	if err != nil {
		return err
	}
	s.layers.Start(ctx, "admission", p.admission.Run)
	return nil
}
