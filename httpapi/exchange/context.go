package exchange

import (
	"context"
	"time"

	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// Context adds to ctx what apiserver's handlers, registries and admission
// plugins read from a request's context. Handlers add the namespace themselves.
func Context(ctx context.Context, info *apirequest.RequestInfo, u user.Info, received time.Time) context.Context {
	ctx = apirequest.WithReceivedTimestamp(ctx, received)
	ctx = apirequest.WithRequestInfo(ctx, info)
	if _, ok := apirequest.LatencyTrackersFrom(ctx); !ok {
		ctx = apirequest.WithLatencyTrackers(ctx)
	}
	if u != nil {
		ctx = apirequest.WithUser(ctx, u)
	}
	return Unaudited(ctx)
}

// Unaudited returns ctx with an audit context that records nothing, unless it has one. Patches need one, and an
// uninitialized one would make all handlers encode every object for the record.
func Unaudited(ctx context.Context) context.Context {
	if audit.AuditContextFrom(ctx) != nil {
		return ctx
	}
	ctx = audit.WithAuditContext(ctx)
	// Only a second Init fails.
	_ = audit.AuditContextFrom(ctx).Init(audit.RequestAuditConfig{Level: auditapi.LevelNone}, nil)
	return ctx
}
