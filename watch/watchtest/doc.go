// Package watchtest compares the deliveries of watchers with the history of a store.
//
// A [History] is all changes of the store, in revision order. A [Checker] records the events that one client
// received. It names each guarantee of package watch that was broken (W1 Ordered to W7 Filtered). The events may
// come from a Watcher in this process, or from any server that speaks Kubernetes' watch protocol.
//
//	c := watchtest.NewChecker(watchtest.Request{After: 17, Selects: selects})
//	for ... {
//		c.Observe(reports...) // of one batch
//	}
//	err := c.Verify(history, 42) // it had time to deliver everything up to 42
//
// Some guarantees can be checked while the reports come in (W1, W2, W6 in part); the
// others need the History. Neither type is safe for concurrent use.
package watchtest
