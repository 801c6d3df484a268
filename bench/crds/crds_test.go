package crds

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/larder-io/larder/bench/testservers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTimedOutRequestsAreRetried checks that a request is repeated after the server's timeout, but after no other
// error.
func TestTimedOutRequestsAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		err := until(t.Context(), func(context.Context) (bool, error) {
			asked++
			return asked == 3, []error{apierrors.NewTimeoutError("late", 0), nil, nil}[asked-1]
		})
		if err != nil || asked != 3 {
			t.Errorf("%d requests: %v", asked, err)
		}
		refused := errors.New("refused")
		if err := until(t.Context(), func(context.Context) (bool, error) { return false, refused }); err != refused {
			t.Errorf("a rejected request: %v", err)
		}
	})
}

// TestInvalidConfigsAreRefused checks that an invalid configuration is refused before anything is started.
func TestInvalidConfigsAreRefused(t *testing.T) {
	for _, c := range []Config{
		{Clients: 1, Trials: testservers.Trials{Rounds: 1}},
		{Count: 1, Clients: 1, Trials: testservers.Trials{Rounds: 1, Servers: []string{"etcd"}}},
	} {
		if results, err := Run(t.Context(), c); err == nil || results != nil {
			t.Errorf("%+v: %v, %v", c, results, err)
		}
	}
}

// TestPathsOfADocument checks that exactly the paths below /apis are found, also in a document that is cut off.
func TestPathsOfADocument(t *testing.T) {
	got := slices.Sorted(maps.Keys(paths([]byte(`{"paths":{"/api/v1/":{},"/apis/":{},"/apis/a/v1/x":{"$ref":"#/apis/no"},"/apis/a/v1/y":{}},"x":"/apis/cut`))))
	if want := []string{"/apis/", "/apis/a/v1/x", "/apis/a/v1/y"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
