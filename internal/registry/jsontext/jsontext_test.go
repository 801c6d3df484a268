package jsontext_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/internal/registry/jsontext"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// FuzzStringsAreThoseOfEncodingJSON compares strings of any bytes with the output of encoding/json, and the reported
// plain prefixes with the escapes of encoding/json.
func FuzzStringsAreThoseOfEncodingJSON(f *testing.F) {
	for _, seed := range []string{"", "plain", "long enough for whole words, and more", `"`, `back\slash`, "<a&b>", "\x00\x1f\x7f", "é\u2028\u2029😀", "\xff\xc3", "12345678\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, s []byte) {
		want, err := json.Marshal(string(s))
		if err != nil {
			t.Fatal(err)
		}
		if got := jsontext.AppendString([]byte("x"), s); !bytes.Equal(got[1:], want) {
			t.Errorf("%q: got %s, want %s", s, got[1:], want)
		}
		if got := jsontext.AppendString(nil, string(s)); !bytes.Equal(got, want) {
			t.Errorf("%q as a string: got %s, want %s", s, got, want)
		}
		n := jsontext.Plain(s)
		if plain, err := json.Marshal(string(s[:n])); err != nil || len(plain) != n+2 {
			t.Errorf("%q: encoding/json escapes something in the first %d bytes: %s", s, n, plain)
		}
		if n < len(s) && s[n] >= ' ' && s[n] < 0x80 && !bytes.ContainsRune([]byte(`"\<>&`+"\x7f"), rune(s[n])) {
			t.Errorf("%q: %q at %d needs no escape", s, s[n], n)
		}
		if jsontext.IsPlain(s, 0, len(s)) && len(want) != len(s)+2 {
			t.Errorf("%q: is said to be plain, and is written as %s", s, want)
		}
	})
}
