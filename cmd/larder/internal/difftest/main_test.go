package difftest

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/larder-io/larder/cmd/larder/internal/relay/relaytest"
	"github.com/larder-io/larder/cmd/larder/internal/server/servertest"
	"github.com/larder-io/larder/internal/proctest"
)

var (
	stockBinary = flag.String("stock", "", "kube-apiserver to compare with; without it, recorded responses")
	rewrite     = flag.Bool("rewrite", false, "record the responses of -stock")
	protocol    = flag.String("protocol", "h1", "h1 or h2: the version of HTTP of requests with -stock")
	only        = flag.String("only", "", "regular expression that selects requests by name")
)

// roleVariable makes the test binary a Larder server, configured by the variable's value.
const roleVariable = "LARDER_DIFFTEST_SERVER"

func TestMain(m *testing.M) {
	proctest.ShortTemp()
	if role := os.Getenv(roleVariable); role != "" {
		if err := servertest.Run(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if role := os.Getenv(relayVariable); role != "" {
		if err := relaytest.Run(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	proctest.Main(m)
}
