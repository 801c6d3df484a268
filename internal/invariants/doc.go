// Package invariants switches on the assertions that are too expensive for
// production. Builds tagged "invariants" set [Enabled]; all others compile the
// guarded blocks away. An assertion may observe and panic, but never changes the program's
// behaviour. [Overwrite] changes bytes that must no longer be read, and a [Seal] checks that
// bytes have not changed since they were published.
package invariants

import "fmt"

// Assertf panics with the formatted message when ok is false. Call it inside
// an "if invariants.Enabled" block, so that its arguments cost nothing in other
// builds.
func Assertf(ok bool, format string, args ...any) {
	if !ok {
		panic("invariant violated: " + fmt.Sprintf(format, args...))
	}
}
