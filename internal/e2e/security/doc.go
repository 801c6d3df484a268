// Package security attacks a larder process over TLS, as a hostile client would. It has only tests. The
// server is built with the tag invariants, which overwrites buffers before they are reused, and with the
// race detector if the tests are.
//
// TestKnownAttacksFail has a test for each published vulnerability of API servers that can affect this
// one, by its CVE number:
//
//	go test ./internal/e2e/security -run TestKnownAttacksFail/CVE-2019-11247
//
// Those that cannot affect it are in notApplicable, each with its reason.
//
// TestTenantsSeeNoForeignData has two hundred users, each with a namespace whose objects contain the user's mark. The
// users send requests in every encoding, over connections that others have used, pipelined, with watches and
// websockets; many disconnect in the middle. No response may contain another user's mark. Then they go on through a
// relay, while a quarter of them lose their RoleBindings: they are refused within seconds, and their watches end. A run
// prints its seed. A longer run:
//
//	go test -race ./internal/e2e/security -run TestTenantsSeeNoForeignData -duration 10m -seed 7
package security
