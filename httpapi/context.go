package httpapi

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// handlerContext adds to ctx what apiserver's handlers, registries and admission
// plugins read from a request's context. Handlers add the namespace themselves.
// There is no audit context: a blank one would make them record every object.
func handlerContext(ctx context.Context, info *apirequest.RequestInfo, u user.Info, received time.Time) context.Context {
	ctx = apirequest.WithReceivedTimestamp(ctx, received)
	ctx = apirequest.WithRequestInfo(ctx, info)
	ctx = apirequest.WithLatencyTrackers(ctx)
	if u != nil {
		ctx = apirequest.WithUser(ctx, u)
	}
	return ctx
}

// recordingWarnings lets h, and whatever it calls, send Warning headers.
func recordingWarnings(h http.Handler) http.Handler {
	return filters.WithWarningRecorder(h)
}
