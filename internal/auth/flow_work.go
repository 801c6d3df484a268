package auth

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
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
	// maxListSeats is how many seats a list takes at most, unless the priority level says.
	maxListSeats = 100
)

// estimate returns how many seats a request takes, and for how long after its end.
func (f *Flow) estimate(a authorizer.Attributes, r FlowRequest, class *FlowClass) flowrequest.WorkEstimate {
	switch a.GetVerb() {
	case "list", "watch":
		most := f.controller.GetMaxSeats(class.Level)
		if most == 0 || most > maxListSeats {
			most = maxListSeats
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
	options, err := r.ListOptions()
	if err != nil {
		return most
	}
	watch := a.GetVerb() == "watch"
	if watch && !sendsInitial(options) {
		return 1
	}
	objects, bytes, ok := f.config.Stored(schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()})
	if !ok || objects == 0 {
		return 1
	}
	size := bytes / objects
	if size == 0 {
		size = largestObject
	}
	loaded := objects
	if options.Limit > 0 {
		loaded = min(loaded, options.Limit)
	}
	cached := watch || upstreamCaches(options)
	switch {
	case a.GetName() != "":
		loaded = 1
	case !cached && selects(options):
		loaded = max(loaded, objects/2)
	}
	memory := loaded * size
	if cached {
		memory = min(memory, streamedBytes)
	}
	return min(max(uint64(memory+bytesPerSeat-1)/bytesPerSeat, 1), most)
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
func upstreamCaches(o *internalversion.ListOptions) bool {
	switch o.ResourceVersionMatch {
	case metav1.ResourceVersionMatchNotOlderThan:
		return true
	case "":
		return o.Continue == "" && (o.Limit == 0 || o.ResourceVersion == "" || o.ResourceVersion == "0")
	}
	return false
}

// Estimate returns what a request of a class costs.
func (f *Flow) Estimate(a authorizer.Attributes, r FlowRequest, class *FlowClass) flowrequest.WorkEstimate {
	return f.estimate(a, r, class)
}
