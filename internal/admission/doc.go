// Package admission decides what may be written, with all of kube-apiserver's plugins.
//
// # Model
//
// [Load] builds upstream's chain (k8s.io/apiserver pkg/admission) from upstream's plugins: those
// that Config.Options name, in upstream's order, with their configuration and metrics. This
// package provides what the plugins use:
//
//   - Informers, shared with the server. Listers of resources with many objects read the
//     registry's caches and decode what is asked for ([store]).
//   - Clients that call this server, an authorizer, quota evaluators, and a mapper that follows
//     discovery.
//   - [Webhooks]: how webhooks are reached and with which credentials.
//
// Upstream's plugin of mutating webhooks is called only if there may be a webhook.
//
// # Guarantees
//
// A write that arrives before the informers have synced waits for them, until ten seconds after
// [Chain.Run] began. Then each plugin waits for its own informers, and refuses what it cannot
// judge. Reads are not admitted, so the informers' own requests never wait.
//
// # Goroutines
//
// Upstream's plugins for policies start goroutines in Load and do not wait for them. These
// goroutines end when Run does: Run must be called once, if only with an ended context. Informers
// that policies start later end when Config.InformersEnd is closed.
package admission
