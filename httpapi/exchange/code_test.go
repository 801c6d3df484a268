package exchange

import "testing"

// TestCodesHaveThreeDigits checks that a response has a code of three digits. HTTP/1.1 clients reject others, and in a
// header block of HTTP/2 they would end the connection.
func TestCodesHaveThreeDigits(t *testing.T) {
	for code, want := range map[int]int{-1: 500, 0: 500, 99: 500, 100: 100, 418: 418, 999: 999, 1000: 500, 99999: 500} {
		var r Response
		if r.Head(code, ""); r.StatusCode() != want {
			t.Errorf("code %d is sent as %d, want %d", code, r.StatusCode(), want)
		}
	}
}
