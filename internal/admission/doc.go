// Package admission decides what may be written, with all of kube-apiserver's plugins.
//
// # Model
//
// [Load] builds upstream's chain (k8s.io/apiserver pkg/admission): the plugins that the
// [Options] name, in upstream's order, with their configuration, metrics and
// reinvocation. The plugins are upstream's code alone. This package provides what they
// use:
//
//   - Informers, which the server shares. Of resources that come in great numbers nothing
//     is held decoded: their listers read the registry's caches and decode what is asked
//     for ([store]).
//   - Clients that call this very server, an authorizer, quota evaluators, and a mapper
//     that follows discovery.
//   - [Webhooks]: how webhooks are reached and with which credentials.
//
// # Guarantees
//
// A write that comes before the informers have synced waits for them, ten seconds at
// most after [Chain.Run] began; then each plugin decides for itself whether it can do
// without, as upstream's do, and refuses what it cannot judge. Reads are not admitted, so
// that the informers' own requests to this server never wait.
//
// The plugins of policies and webhooks are called only while there are objects that
// configure them ([conditional]). Upstream's metrics count the calls that are left out, too.
//
// # Goroutines
//
// Upstream's plugins for policies have goroutines from Load on, and do not wait for them;
// they are told to end when Run does. Run must be called once, if only with an ended
// context. Informers that policies ask for later end when Config.InformersEnd says.
package admission
