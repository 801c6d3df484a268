package wire_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/larder-io/larder/internal/registry/wire"
)

// indented writes body to an indenter in pieces whose lengths cut chooses.
func indented(t failer, body []byte, cut func(rest int) int) []byte {
	var out bytes.Buffer
	in := wire.NewIndenter(&out)
	for rest := body; len(rest) > 0; {
		n := cut(len(rest))
		if m, err := in.Write(rest[:n]); m != n || err != nil {
			t.Errorf("wrote %d of %d bytes, error %v", m, n, err)
		}
		rest = rest[n:]
	}
	if err := in.Close(); err != nil {
		t.Errorf("flush: %v", err)
	}
	return out.Bytes()
}

// indent is json.Indent, without the newline at the end of body.
func indent(body []byte) ([]byte, error) {
	var out bytes.Buffer
	err := json.Indent(&out, bytes.TrimSuffix(body, []byte("\n")), "", "  ")
	return out.Bytes(), err
}

// TestIndentedLists checks that a list written in random pieces is indented as json.Indent does.
func TestIndentedLists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var items [][]byte
		for range rapid.IntRange(0, 3).Draw(t, "items") {
			items = append(items, must(json.Marshal(drawSet(t))))
		}
		body := wire.AppendList(nil, wire.JSON(statefulSets), wire.ListMeta{Revision: 5}, items)
		got := indented(t, body, func(rest int) int { return rapid.IntRange(1, rest).Draw(t, "cut") })
		same(t, "indented", got, must(indent(body)))
	})
}

// TestIndenterCases checks values of all types, written in pieces of several sizes.
func TestIndenterCases(t *testing.T) {
	for _, body := range []string{
		`{}`, `[]`, `{"a":{}}`, `[[],{},[{}]]`, `{"a":[1,-2.5e3,true,null],"b":"c"}`, `"\\"`, `{"\"{":"}\\\"]"}`, `1`,
		` { "a" : [ ] , "b" : [ 1 ] }`, `{"a":"` + strings.Repeat(`x\"`, 20000) + `"}`,
	} {
		want := must(indent([]byte(body)))
		for _, size := range []int{1, 7, 1 << 20} {
			got := indented(t, []byte(body), func(rest int) int { return min(rest, size) })
			same(t, body[:min(40, len(body))], got, want)
		}
	}
}

type broken struct{}

var errBroken = errors.New("broken")

func (broken) Write([]byte) (int, error) { return 0, errBroken }

// TestIndenterReturnsErrors checks that Write and Close return the error of the underlying writer.
func TestIndenterReturnsErrors(t *testing.T) {
	in := wire.NewIndenter(broken{})
	if _, err := in.Write(bytes.Repeat([]byte("[]"), 1<<16)); !errors.Is(err, errBroken) {
		t.Errorf("write: error %v, want %v", err, errBroken)
	}
	if err := in.Close(); !errors.Is(err, errBroken) {
		t.Errorf("flush: error %v, want %v", err, errBroken)
	}
}

// FuzzIndenter indents JSON in two pieces.
func FuzzIndenter(f *testing.F) {
	f.Add([]byte(`{"a":["b",{}]}`), 3)
	f.Add([]byte(`"\\\""`), 2)
	f.Fuzz(func(t *testing.T, body []byte, cut int) {
		in := wire.NewIndenter(&bytes.Buffer{})
		_, _ = in.Write(body) // any bytes, even if they are not JSON
		want, err := indent(body)
		if err != nil {
			return
		}
		first := true
		got := indented(t, body, func(rest int) int {
			if first && cut > 0 && cut < rest {
				first = false
				return cut
			}
			return rest
		})
		if !bytes.Equal(got, bytes.TrimRight(want, " \t\r\n")) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
