package auth

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/audit"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/server/options"
)

// Audit has the audit policy and the backend. Build one with [LoadAudit].
type Audit struct {
	Policy audit.PolicyRuleEvaluator
	// Backend receives audit events. The options decide whether it writes them before it returns,
	// or in batches.
	Backend audit.Backend
}

// LoadAudit reads the files that o names and makes the backend. Without a policy or a backend it
// returns nil, and nothing is audited, as in kube-apiserver. Connections to the webhook use egress;
// nil connects directly.
func LoadAudit(o *options.AuditOptions, egress *egressselector.EgressSelector) (*Audit, error) {
	c := genericapiserver.Config{EgressSelector: egress} // ApplyTo sets the two fields used below
	if err := o.ApplyTo(&c); err != nil {
		return nil, fmt.Errorf("auth: audit: %w", err)
	}
	if c.AuditBackend == nil || c.AuditPolicyRuleEvaluator == nil {
		return nil, nil
	}
	return &Audit{Policy: c.AuditPolicyRuleEvaluator, Backend: c.AuditBackend}, nil
}

// Run runs the backend until ctx ends and then flushes it. It must end after the last
// request.
func (a *Audit) Run(ctx context.Context) error {
	if err := a.Backend.Run(ctx.Done()); err != nil {
		return fmt.Errorf("auth: audit: %w", err)
	}
	<-ctx.Done()
	a.Backend.Shutdown()
	return nil
}
