package auth

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apiserver/pkg/audit"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/server/options"
)

// Audit says what is recorded of requests, and records it. Build one with [LoadAudit].
type Audit struct {
	Policy audit.PolicyRuleEvaluator
	// Backend takes the records. It writes them before it returns, or keeps them until
	// they are a batch, as was asked for.
	Backend audit.Backend
}

// LoadAudit reads the files that o names and makes what writes records. It returns nil if
// none are to be written: without a policy, or without a place to write them to, there
// is no audit. kube-apiserver takes either for granted, too. egress says how the webhook
// is connected to; nil does so directly.
func LoadAudit(o *options.AuditOptions, egress *egressselector.EgressSelector) (*Audit, error) {
	if o == nil {
		return nil, nil
	}
	c := genericapiserver.Config{EgressSelector: egress} // of which ApplyTo sets two others
	if err := o.ApplyTo(&c); err != nil {
		return nil, fmt.Errorf("auth: audit: %w", err)
	}
	if c.AuditBackend == nil || c.AuditPolicyRuleEvaluator == nil {
		return nil, nil
	}
	return &Audit{Policy: c.AuditPolicyRuleEvaluator, Backend: c.AuditBackend}, nil
}

// ValidateAudit checks what can be checked without reading a file.
func ValidateAudit(o *options.AuditOptions) error { return errors.Join(o.Validate()...) }

// Run sends records on until ctx ends and then what is left of them. It must end after
// the last request.
func (a *Audit) Run(ctx context.Context) error {
	if err := a.Backend.Run(ctx.Done()); err != nil {
		return fmt.Errorf("auth: audit: %w", err)
	}
	<-ctx.Done()
	a.Backend.Shutdown()
	return nil
}
