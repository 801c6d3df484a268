// Package relay passes requests through to another kube-apiserver, the upstream.
//
// A client's own credential, or none, goes through unchanged. The relay's credential goes only with the
// impersonation of the user that the client's certificate names. Two sets of transports keep them apart:
// one has no credential, and the other refuses requests without impersonation.
//
// The relay's credential must not be the client certificate of a front proxy.
package relay
