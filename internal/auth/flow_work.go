package auth

import (
	"context"
	"net/http"
	"sync"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/feature"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// Estimate returns how many seats a request of a class takes, and for how long after its end.
func (f *Flow) Estimate(a authorizer.Attributes, r FlowRequest, class *FlowClass) flowrequest.WorkEstimate {
	req := new(http.Request)
	switch a.GetVerb() {
	case "list", "watch":
		req.URL = r.URL() // whose query the estimate depends on
	case "create", "update", "patch", "delete":
	default:
		return flowrequest.WorkEstimate{InitialSeats: 1} // upstream's estimator says so, too
	}
	return f.estimate(req.WithContext(apirequest.WithRequestInfo(context.Background(), r.RequestInfo())), class.Schema, class.Level)
}

// watchProgressSet sets upstream's variable only once, because other servers in the process may read it.
var watchProgressSet = sync.Once{}

// supportWatchProgress makes upstream's estimator assume that etcd supports progress requests of
// watches. Then it estimates that a cache answers consistent lists, as the caches here always do.
func supportWatchProgress() {
	watchProgressSet.Do(func() {
		feature.DefaultFeatureSupportChecker = watchProgress{feature.DefaultFeatureSupportChecker}
	})
}

type watchProgress struct{ feature.FeatureSupportChecker }

// Supports implements feature.FeatureSupportChecker.
func (w watchProgress) Supports(f storage.Feature) bool {
	return f == storage.RequestWatchProgress || w.FeatureSupportChecker.Supports(f)
}
