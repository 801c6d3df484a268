package jsontext_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/jsontext"
)

func TestMain(m *testing.M) { proctest.Main(m) }

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

// FuzzStringEnd checks that StringEnd recognizes the strings that encoding/json writes, and only strings that it would write again.
func FuzzStringEnd(f *testing.F) {
	for _, seed := range []string{`""`, `"plain" `, `"\"\\\b\f\n\r\t"`, `"\u0000\u001f\u003c\u2028"`, `"\u003C"`, `"\u0061"`, `"\ufffd"`, `"\ud83d\ude00"`, `"\/"`, "\"\xff\"", "\"\u2028\"", `"<"`, "\"\n\"", `"open`, `"\u00`, `"\`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		written, err := json.Marshal(strings.ToValidUTF8(string(data), "?"))
		if err != nil {
			t.Fatal(err)
		}
		if end := jsontext.StringEnd(append([]byte{' '}, append(written, data...)...), 1); end != 1+len(written) {
			t.Errorf("%s: ends at %d", written, end)
		}
		end := jsontext.StringEnd(data, 0)
		if end < 0 {
			return
		}
		var s string
		if err := json.Unmarshal(data[:end], &s); err != nil {
			t.Fatalf("%q is recognized: %v", data[:end], err)
		}
		if again, err := json.Marshal(s); err != nil || !bytes.Equal(again, data[:end]) {
			t.Errorf("%q is recognized, and written as %q: %v", data[:end], again, err)
		}
	})
}
