package customresources_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/internal/proctest"
)

func TestMain(m *testing.M) {
	proctest.Main(m,
		// Webhook clients keep connections to servers that have ended for a while.
		goleak.IgnoreTopFunction("internal/poll.runtime_pollWait"),
		goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"),
	)
}
