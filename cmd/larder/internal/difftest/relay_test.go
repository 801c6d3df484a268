package difftest

import (
	"slices"
	"strings"
	"testing"

	"github.com/larder-io/larder/cmd/larder/internal/relay/relaytest"
	"github.com/larder-io/larder/internal/proctest"
)

// relayVariable makes the test binary be a relay, configured by its value.
const relayVariable = "LARDER_DIFFTEST_RELAY"

// TestRelayAnswersAsItsUpstream compares the answers of a relay with those of its upstream: kube-apiserver with -stock,
// otherwise Larder.
func TestRelayAnswersAsItsUpstream(t *testing.T) {
	if testing.Short() {
		t.Skip("asks a relay all that TestAnswersMatchKubeAPIServer asks its upstream")
	}
	w := newWorld(t, "")
	if w.stock == nil {
		w.stock = w.larder
	}
	port := proctest.Port(t)
	w.larder = start(t, "relay", port, proctest.Role(t, relayVariable, relaytest.Config{Dir: t.TempDir(), Upstream: w.stock.url, Token: "admin", Port: port}))
	w.larder.ports = append(w.larder.ports, w.stock.ports...)
	w.stock.ports = w.larder.ports
	w.larder.awaitReady(t)
	w.speak(t, *protocol)
	c := newComparison(t, w)
	c.compareAll("reads", some(slices.Concat(fixedReads(), customReads(), w.everyResource(t), lists())), workers, c.relayed)
	c.compareAll("watches and waits", some(slices.Concat(watches(), customWatches(), waits())), watchers, c.relayed)
	c.live()
	t.Logf("%d comparisons, %d listed differences", c.asked, c.listed)
}

// some returns all requests with -stock, otherwise every fourth.
func some(all []request) (kept []request) {
	if *stockBinary != "" {
		return all
	}
	for i := 0; i < len(all); i += 4 {
		kept = append(kept, all[i])
	}
	return kept
}

// relayed is read for a relay, whose lists from a cache may be of an earlier revision than the upstream's. After a
// watch with initial events the cache is current. A watch that goes through and gets no event may have no body.
func (c *comparison) relayed(r request) (difference string) {
	if difference = c.read(r); difference == "" {
		return ""
	}
	collection, _, _ := strings.Cut(r.Path, "?")
	for try := range tries {
		c.w.larder.ask(get(collection+query("watch", "1", "timeoutSeconds", "3", "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan", "allowWatchBookmarks", "true"), js))
		stock, larder := c.w.both(c.w.concrete(r, try))
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
