package customresources_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/internal/proctest"
)

func TestMain(m *testing.M) {
	proctest.Main(m,
		// Webhook clients keep their connections for a while after a server has stopped.
		goleak.IgnoreTopFunction("internal/poll.runtime_pollWait"),
		goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"),
	)
}
