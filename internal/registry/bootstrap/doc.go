// Package bootstrap creates the objects that every cluster needs, and repairs them:
//
//   - the system namespaces and priority classes
//   - the default ServiceCIDR, and the allocations of service addresses and ports
//   - the kubernetes service and its endpoints
//   - RBAC roles and bindings
//   - the configuration of flow control
//   - the identity Lease of this server, and its storage versions
//
// # Model
//
// A [Bootstrap] is a list of hooks, named as kube-apiserver names them in its health checks. Each hook
// creates missing objects, is then ready, and repairs its objects until the server stops. Upstream's
// packages define the objects, and how existing objects are reconciled. Hooks, and the
// writes of a hook, run concurrently, because the server is ready only when all hooks are.
//
// # Guarantees
//
// Running a hook again, in this server or in another one on the same store, changes nothing. When
// [Bootstrap.WaitReady] returns nil, every object exists, with these exceptions:
//
//   - The endpoints of this server are published when /readyz returns 200, and withdrawn by
//     [Bootstrap.Stop]. Without Config.AnyPort they are not published while other servers have published
//     another port.
//   - If a namespace or the kubernetes service cannot be created, the hook retries as long as the server
//     runs. The server is ready after Config.Grace.
//   - Hooks that wait for unreadable objects delay readiness until [Bootstrap.AllowUnready], and finish later.
//
// # Goroutines
//
// New starts none. Run starts one for each hook and returns when all have ended.
// Some of upstream's loops leave goroutines that end soon after Run's context.
package bootstrap
