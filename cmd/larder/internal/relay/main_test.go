package relay

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/internal/proctest"
)

func TestMain(m *testing.M) {
	proctest.Main(m,
		// client-go keeps the connections of a webhook until they are idle for long.
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*http2ClientConn).readLoop"),
	)
}
