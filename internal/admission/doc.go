// Package admission runs kube-apiserver's admission plugins.
//
// # Model
//
// [Load] builds upstream's chain (k8s.io/apiserver pkg/admission) from upstream's plugins: those
// that Config.Options name, in upstream's order, with their configuration and metrics. This
// package provides the objects that plugins use:
//
//   - Informers, shared with the server. Listers of resources with many objects read the
//     registry's caches and decode only the requested objects ([store]).
//   - Clients that call this server, an authorizer, quota evaluators, and a mapper that follows
//     discovery.
//   - [Webhooks]: the addresses and credentials for webhooks.
//
// Upstream's mutating webhook plugin is called only if there may be a webhook.
//
// # Guarantees
//
// A write that arrives before the informers have synced waits for them, until ten seconds after the
// start of [Chain.Run]. Then each plugin waits for its own informers, and rejects writes that it cannot
// decide. Reads need no admission, so the informers' own requests never wait.
//
// # Goroutines
//
// Upstream's plugins for policies start goroutines in Load and do not wait for them. These
// goroutines end when Run does, so Run must be called once, if only with an ended context. Informers
// that policies start later end when Config.InformersEnd is closed.
package admission
