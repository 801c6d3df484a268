// Package invariants switches on the assertions that are too expensive for
// production. Builds tagged "invariants" set [Enabled]; all others compile the
// guarded blocks away. An assertion may observe and panic, never change what
// the program does; [Overwrite] changes bytes that nobody may look at any more, and
// a [Seal] tells whether bytes are still what they were when they were published.
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
