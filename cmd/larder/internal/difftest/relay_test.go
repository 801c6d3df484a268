package difftest

import (
	"slices"
	"strings"
	"testing"

	"github.com/larder-io/larder/cmd/larder/internal/relay/relaytest"
	"github.com/larder-io/larder/internal/proctest"
)

// relayVariable makes the test binary a relay, configured by the variable's value.
const relayVariable = "LARDER_DIFFTEST_RELAY"

// TestRelayMatchesItsUpstream compares the responses of a relay with those of its upstream: kube-apiserver with -stock,
// otherwise Larder.
func TestRelayMatchesItsUpstream(t *testing.T) {
	if testing.Short() {
		t.Skip("sends a relay all requests that TestResponsesMatchKubeAPIServer sends its upstream")
	}
	f := newFixture(t, "")
	if f.stock == nil {
		f.stock = f.larder
	}
	port := proctest.Port(t)
	f.larder = start(t, "relay", port, proctest.Role(t, relayVariable, relaytest.Config{Dir: t.TempDir(), Upstream: f.stock.url, Token: "admin", Port: port}))
	f.larder.ports = append(f.larder.ports, f.stock.ports...)
	f.stock.ports = f.larder.ports
	f.larder.awaitReady(t)
	f.useProtocol(t, *protocol)
	c := newComparison(t, f)
	c.compareAll("reads", some(slices.Concat(fixedReads(), customReads(), f.everyResource(t), lists())), workers, c.compareRelayed)
	c.compareAll("watches and waits", some(slices.Concat(watches(), customWatches(), waits())), watchers, c.compareRelayed)
	c.compareLiveWatches()
	t.Logf("%d comparisons, %d listed differences", c.compared, c.listed)
}

// some returns all requests with -stock, otherwise every fourth one.
func some(all []request) (kept []request) {
	if *stockBinary != "" {
		return all
	}
	for i := 0; i < len(all); i += 4 {
		kept = append(kept, all[i])
	}
	return kept
}

// compareRelayed is compareRead for a relay. Its lists from a cache may have an earlier revision than the upstream's,
// but after a watch with initial events the cache is current. A forwarded watch without events may have no body.
func (c *comparison) compareRelayed(r request) (difference string) {
	if difference = c.compareRead(r); difference == "" {
		return ""
	}
	collection, _, _ := strings.Cut(r.Path, "?")
	for try := range tries {
		c.f.larder.send(get(collection+query("watch", "1", "timeoutSeconds", "3", "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan", "allowWatchBookmarks", "true"), js))
		stock, larder := c.f.sendBoth(c.f.fillIn(r, try))
		if strings.Contains(r.Path, "watch=") {
			delete(stock.head, "Transfer-Encoding")
			delete(larder.head, "Transfer-Encoding")
		}
		if difference = compare(stock, larder); difference == "" {
			return ""
		}
	}
	return difference
}
