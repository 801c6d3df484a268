package consistency

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/larder-io/larder/cmd/larder/internal/relay/relaytest"
	"github.com/larder-io/larder/cmd/larder/internal/server/servertest"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv/kvtest"
)

var (
	duration = flag.Duration("duration", 15*time.Second, "how long faults are injected")
	seed     = flag.Int64("seed", 0, "seed of the faults and the clients; 0 uses the clock")
	only     = flag.String("faults", "", "regular expression that selects faults by name")
	beside   = flag.String("stock", "", "kube-apiserver to run beside the Larders of TestHistory")
)

// These variables make the test binary another process, which their values configure.
const (
	memberVariable = "LARDER_CONSISTENCY_MEMBER"
	larderVariable = "LARDER_CONSISTENCY_LARDER"
	relayVariable  = "LARDER_CONSISTENCY_RELAY"
)

func TestMain(m *testing.M) {
	proctest.ShortTemp()
	var err error
	if raw := os.Getenv(memberVariable); raw != "" {
		err = kvtest.RunMember(raw)
	} else if raw := os.Getenv(larderVariable); raw != "" {
		err = servertest.Run(raw)
	} else if raw := os.Getenv(relayVariable); raw != "" {
		err = relaytest.Run(raw)
	} else if flag.Parse(); testing.Short() {
		fmt.Fprintln(os.Stderr, "skipped with -short: injects faults for minutes")
	} else {
		proctest.Main(m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
