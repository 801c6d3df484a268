// Package auth authenticates, authorizes and audits requests.
//
// Authenticators and authorizers are kube-apiserver's own libraries, with its options. [Load]
// reads the files that its [Config] names and returns an [Auth]. Package httpapi calls its parts:
//
//   - Authenticator: front proxies, client certificates, bearer tokens (token file, service
//     accounts, bootstrap tokens, OpenID providers, a webhook), then anonymous. A credential
//     that no authenticator accepts is an error (401), never anonymous.
//   - Authorizer: system:masters, then the modes in the configured order, or those of a
//     configuration file. The first authorizer with an opinion decides. Without an opinion the
//     request is denied. Decisions of RBAC are cached until an RBAC object changes. Other
//     decisions are not cached here: the Node authorizer is fast, and webhooks have caches.
//   - RuleResolver: lists the rules that apply to a user, for SelfSubjectRulesReview.
//   - Issuer: signs service-account tokens for TokenRequest.
//
// While a server starts, RBAC and the Node authorizer have not loaded their objects yet. With [Config].Ended, a request
// that is not allowed yet waits for them, instead of being denied. If the request or the server ends first, the
// decision fails with [ErrNotSynced], and package httpapi responds with 429. Reflectors resume after a 429, but list
// again after a 403. Health probes do not wait.
//
// [Auth.Follow] maintains the Node authorizer's graph of the objects that each node refers to. It
// decodes only the fields of pods that the graph needs, and keeps a digest of them.
//
// [Auth.Revocation] reports when long-running requests must be authenticated again, and authenticates them without the
// token cache. It distinguishes a rejection from an error, so that no client loses access because a webhook or provider
// is unreachable. Local decisions do not wait for webhooks and providers.
//
// [LoadAudit] loads kube-apiserver's audit policy and backends. Package httpapi makes the events.
//
// Accepted tokens are cached for nine seconds, client certificates for a minute, and package httpapi reuses
// a response for one second more. A change of the CAs discards cached certificates
// ([Auth.Generation]). The objects that a token depends on are read from the registry's caches.
//
// # Goroutines
//
// [Audit.Run] runs the audit backend. [Auth.Run] follows CA and configuration files until its context ends. If a file
// becomes invalid, the last valid content stays in force. Load starts the goroutines of upstream's reloaders, so Run
// must be called, at least with an ended context. The goroutines that call OpenID providers and an external signer end
// with Load's context. [Auth.Follow] has a goroutine for each kind that the Node authorizer reads.
package auth
