package crds

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/larder-io/larder/bench/testservers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTimedOutRequestsAreRetried checks that a request is retried after the server's timeout, but after no other error.
func TestTimedOutRequestsAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		err := until(t.Context(), func(context.Context) (bool, error) {
			requests++
			return requests == 3, []error{apierrors.NewTimeoutError("late", 0), nil, nil}[requests-1]
		})
		if err != nil || requests != 3 {
			t.Errorf("%d requests, error %v; want 3 and no error", requests, err)
		}
		rejected := errors.New("rejected")
		if err := until(t.Context(), func(context.Context) (bool, error) { return false, rejected }); err != rejected {
			t.Errorf("a rejected request: error %v, want %v", err, rejected)
		}
	})
}

// TestInvalidConfigsAreRejected checks that an invalid configuration is rejected before anything is started.
func TestInvalidConfigsAreRejected(t *testing.T) {
	for _, c := range []Config{
		{Clients: 1, Trials: testservers.Trials{Rounds: 1}},
		{Count: 1, Clients: 1, Trials: testservers.Trials{Rounds: 1, Servers: []string{"etcd"}}},
	} {
		if results, err := Run(t.Context(), c); err == nil || results != nil {
			t.Errorf("%+v: results %v, error %v", c, results, err)
		}
	}
}
