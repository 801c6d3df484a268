package auth

import (
	"context"
	"math"
	"net/http"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// The estimate of what a list costs: apiserver
// pkg/util/flowcontrol/request/list_work_estimator.go.
const (
	bytesPerSeat = 100_000
	// streamedBytes is how much memory a list from the cache takes at most.
	streamedBytes = 1_000_000
	// largestObject is the size assumed for objects whose sizes are not known.
	largestObject = 1_500_000
)

// estimator has what the feature gates say of the estimate.
type estimator struct {
	limits     *flowrequest.WorkEstimatorConfig
	bySize     bool // of the objects; otherwise by their number
	watches    bool // a watch costs what its initial objects do
	consistent bool // upstream's cache answers consistent lists
}

func newEstimator() estimator {
	on := utilfeature.DefaultFeatureGate.Enabled
	return estimator{
		limits: flowrequest.DefaultWorkEstimatorConfig(),
		bySize: on(features.SizeBasedListCostEstimate), watches: on(features.WatchList), consistent: on(features.ConsistentListFromCache),
	}
}

// Estimate returns how many seats a request of a class takes, and for how long after its end.
func (f *Flow) Estimate(a authorizer.Attributes, r FlowRequest, class *FlowClass) flowrequest.WorkEstimate {
	switch a.GetVerb() {
	case "list", "watch":
		most, limit := f.controller.GetMaxSeats(class.Level), f.estimator.limits.MaximumListSeatsLimit
		if most == 0 || most > limit {
			most = limit
		}
		return flowrequest.WorkEstimate{InitialSeats: f.listSeats(a, r, most)}
	case "create", "update", "patch", "delete":
		req := (&http.Request{}).WithContext(apirequest.WithRequestInfo(context.Background(), r.RequestInfo()))
		return f.mutating(req, class.Schema, class.Level)
	}
	return flowrequest.WorkEstimate{InitialSeats: 1}
}

// listSeats returns how many seats, up to most, a list takes, or a watch for its initial
// objects.
func (f *Flow) listSeats(a authorizer.Attributes, r FlowRequest, most uint64) uint64 {
	watch := a.GetVerb() == "watch"
	if watch && !f.estimator.watches {
		return 1
	}
	options, err := r.ListOptions()
	if err != nil {
		return most
	}
	if watch && !sendsInitial(options) {
		return 1
	}
	objects, bytes, ok := f.config.Stored(schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()})
	if !ok || objects == 0 {
		return 1
	}
	cached, single := watch || f.estimator.upstreamCaches(options), a.GetName() != ""
	var seats uint64
	if f.estimator.bySize {
		seats = bySize(options, cached, single, objects, bytes/objects)
	} else {
		seats = f.estimator.byNumber(options, cached, single, objects)
	}
	return min(max(seats, 1), most)
}

// bySize returns how many seats a list of objects of an average size takes. single says that it
// is of one object.
func bySize(options *internalversion.ListOptions, cached, single bool, objects, size int64) uint64 {
	if size == 0 {
		size = largestObject
	}
	loaded := limited(options, objects)
	switch {
	case single:
		loaded = 1
	case !cached && selects(options):
		loaded = max(loaded, objects/2)
	}
	memory := loaded * size
	if cached {
		memory = min(memory, streamedBytes)
	}
	return uint64(memory+bytesPerSeat-1) / bytesPerSeat
}

// byNumber is bySize for objects whose sizes do not matter.
func (e *estimator) byNumber(options *internalversion.ListOptions, cached, single bool, objects int64) uint64 {
	processed := 2 * limited(options, objects)
	switch {
	case single:
		processed = 1
	case cached:
		processed = objects
	case selects(options):
		processed = objects + limited(options, objects)
	}
	return uint64(math.Ceil(float64(processed) / e.limits.ObjectsPerSeat))
}

// limited is how many of objects a list returns at most.
func limited(options *internalversion.ListOptions, objects int64) int64 {
	if options.Limit > 0 {
		return min(objects, options.Limit)
	}
	return objects
}

// sendsInitial reports whether a watch begins with the present objects.
func sendsInitial(o *internalversion.ListOptions) bool {
	return o.SendInitialEvents != nil && *o.SendInitialEvents || o.ResourceVersion == "" || o.ResourceVersion == "0"
}

func selects(o *internalversion.ListOptions) bool {
	return o.FieldSelector != nil && !o.FieldSelector.Empty() || o.LabelSelector != nil && !o.LabelSelector.Empty()
}

// upstreamCaches reports whether upstream's cache would answer a list: apiserver
// pkg/storage/cacher/delegator.
func (e *estimator) upstreamCaches(o *internalversion.ListOptions) bool {
	switch o.ResourceVersionMatch {
	case metav1.ResourceVersionMatchNotOlderThan:
		return true
	case "":
		return o.Continue == "" && (o.ResourceVersion == "0" || o.ResourceVersion == "" && e.consistent || o.ResourceVersion != "" && o.Limit == 0)
	}
	return false
}
