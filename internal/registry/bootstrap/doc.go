// Package bootstrap makes the objects that a cluster cannot do without, and keeps
// them: the system namespaces, the default ServiceCIDR, the kubernetes service with
// its endpoints, RBAC's roles and bindings, the system priority classes, the
// configuration of flow control, the records of service addresses and ports, the
// Lease that says that this server lives, and the versions that it stores objects in.
//
// # Model
//
// A [Bootstrap] is a list of hooks, named as kube-apiserver names them in its
// health checks. Each makes what is missing, is then ready, and goes on repairing
// until the server stops. What the objects are and how an existing one is
// reconciled is upstream's; when it is done is ours: hooks run at once, and work
// within a hook runs in parallel, because a server is not ready before them.
//
// # Guarantees
//
// Running any hook again, here or in another server on the same store, changes
// nothing. When [Bootstrap.WaitReady] returns nil every object exists. Endpoints of
// this server are an exception: they are published when /readyz answers 200, and
// withdrawn by [Bootstrap.Stop]; not at all while others have published another port, without Config.AnyPort.
// A namespace or the kubernetes service that cannot be made is another: it is tried again
// for as long as the server runs, which is ready after Config.Grace. Hooks that wait for
// objects which cannot be read delay readiness until [Bootstrap.Excuse], and finish later.
//
// # Goroutines
//
// New starts none. Run starts one for each hook and returns when all have ended.
// Some of upstream's loops leave goroutines that end soon after Run's context.
package bootstrap
