// Package testcontrollers runs those few controllers of Kubernetes in the process without
// which a server that stands alone does not behave as its users expect.
//
// # Model
//
// [Controllers] are four of kube-controller-manager's own: the one that empties deleted
// namespaces, the garbage collector, which deletes what has no owner any more and what is
// deleted in the foreground, the one that gives every namespace its default service
// account, without which no pod is admitted, and the one that publishes in every namespace
// whom its pods may trust. No controller of workloads is among them: a Deployment makes no
// pods, and a test of a controller has the objects to itself.
//
// They are for tests and for development. They know nothing of leader election, so that
// they must not run beside a kube-controller-manager, nor in two servers of one store:
// [Rival] tells of the former.
//
// # Guarantees
//
// When [Controllers.WaitReady] returns nil, pods are admitted in the namespace default.
// Kinds that are defined later are collected, and deleted with their namespaces, a few
// seconds after they are served.
//
// [Controllers.Pause] stops them for as long as its caller wants. Afterwards they begin anew.
//
// # Goroutines
//
// New starts none and does no I/O. Run returns when all controllers and informers have
// ended; some queues of upstream's are only told to end, and do so soon after.
package testcontrollers
