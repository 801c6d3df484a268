package server

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestDialsEndWithTheirContext checks that a dial returns when its context ends although the proxy does not respond,
// and that a connection that is made later is closed.
func TestDialsEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		answer := make(chan struct{})
		dial := cancelable(func(context.Context, string, string) (net.Conn, error) { <-answer; return ours, nil })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if conn, err := dial(ctx, "tcp", "node:10250"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, %v", conn, err)
		}
		close(answer)
		synctest.Wait()
		if _, err := theirs.Write([]byte("x")); err == nil {
			t.Error("the late connection is open")
		}
		if conn, err := dial(t.Context(), "tcp", "node:10250"); conn != ours || err != nil {
			t.Errorf("a dial in time: %v, %v", conn, err)
		}
	})
}
