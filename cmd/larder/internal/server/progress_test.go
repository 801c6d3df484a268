package server

import (
	"strings"
	"testing"
	"testing/synctest"
)

func TestProgressFollow(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var out strings.Builder
			p := newProgress(&out, terminal)
			done := make(chan struct{})
			count := 0
			finished := make(chan struct{})
			go func() {
				defer close(finished)
				p.follow(t.Context(), done, func() string { count++; return "mirrored" })
			}()
			synctest.Wait()
			close(done)
			<-finished
			if got := strings.Count(out.String(), "\n"); got != 1 {
				t.Errorf("terminal %v: %d lines in %q", terminal, got, out.String())
			}
			if strings.Contains(out.String(), "\r") != terminal {
				t.Errorf("terminal %v: wrote %q", terminal, out.String())
			}
		})
	}
}
