// Package security attacks a whole Larder from outside, as its enemies would: a real
// `larder serve`, over TLS, with real credentials. It has no code but tests. The server
// is built with the tag invariants, under which buffers are overwritten before they are
// used again, and with the race detector if the tests are.
//
// TestKnownAttacksFail has a test for each published weakness of API servers that can concern this
// one, by its number:
//
//	go test ./internal/e2e/security -run TestKnownAttacksFail/CVE-2019-11247
//
// Those that cannot concern it are in notApplicable, each with its reason.
//
// TestTenantsSeeNoForeignData has two hundred users in namespaces of their own, each with marks in all that
// they keep. They ask in every encoding, over connections that others have used, in
// pipelines, with watches and websockets; many break off in the middle. No byte of one
// may be in an answer to another.
//
//	go test -race ./internal/e2e/security -run TestTenantsSeeNoForeignData -duration 10m -seed 7
//
// runs longer; a run prints its seed.
package security
