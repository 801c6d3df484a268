package bench

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// TestBodiesAreDrained checks that drain reads exactly one body, and returns its length.
func TestBodiesAreDrained(t *testing.T) {
	for _, c := range []struct {
		text  string
		body  int64
		fails bool
		rest  string // bytes that must be left for the next response
	}{
		{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP", 3, false, "HTTP"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\nHTTP", 5, false, "HTTP"},
		{"HTTP/1.0 200 OK\r\n\r\nuntil the end", 13, false, ""},
		{"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", 3, true, ""},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab", 2, true, ""},
	} {
		r := bufio.NewReader(strings.NewReader(c.text))
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("%q: %v", c.text, err)
		}
		n, err := new(conn).drain(resp, io.Discard)
		if (err != nil) != c.fails || n != c.body {
			t.Errorf("%q: %d bytes, error %v", c.text, n, err)
		}
		if rest, _ := io.ReadAll(r); err == nil && string(rest) != c.rest {
			t.Errorf("%q: %q is left, want %q", c.text, rest, c.rest)
		}
	}
}

// TestStreamsAreSplitIntoEvents checks that a stream that arrives in pieces of any size is read as whole events.
func TestStreamsAreSplitIntoEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events := rapid.SliceOf(rapid.SliceOfN(rapid.ByteRange(' ', '~'), 1, 9000)).Draw(t, "events")
		accept := rapid.SampledFrom([]string{JSON, Protobuf}).Draw(t, "accept")
		var all []byte
		for i := range events {
			if accept == JSON {
				events[i] = append(events[i], '\n')
			}
			all = appendFrame(all, events[i], accept)
		}
		pieces := &piecemeal{rest: all, size: rapid.IntRange(1, 5000).Draw(t, "piece")}
		s := &stream{events: Events(pieces, accept)}
		for i, want := range events {
			got, err := s.next()
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("event %d: %d bytes, %v; want %d bytes", i, len(got), err, len(want))
			}
		}
		if _, err := s.next(); !errors.Is(err, io.EOF) {
			t.Fatalf("at the end: %v, want EOF", err)
		}
	})
}

// piecemeal is a reader that returns at most size bytes at a time.
type piecemeal struct {
	rest []byte
	size int
}

func (p *piecemeal) Read(buf []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(buf[:min(len(buf), p.size)], p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// TestInvalidFramesAreRejected checks that a frame that is too long or truncated is an error. One that is too long, such
// as JSON, is rejected before the rest of it arrives.
func TestInvalidFramesAreRejected(t *testing.T) {
	long := binary.BigEndian.AppendUint32(nil, longestFrame+1)
	for text, want := range map[string]error{
		string(long): bufio.ErrTooLong, `{"type":"ADDED"}`: bufio.ErrTooLong,
		"\x00\x00\x00\x05abc": io.ErrUnexpectedEOF, "\x00\x00": io.ErrUnexpectedEOF,
	} {
		s := &stream{events: Events(strings.NewReader(text), Protobuf)}
		if _, err := s.next(); !errors.Is(err, want) {
			t.Errorf("%q: error %v, want %v", text, err, want)
		}
	}
}

// TestErrorsHaveTheServersMessage checks the text that errors take from a response's body.
func TestErrorsHaveTheServersMessage(t *testing.T) {
	for body, want := range map[string]string{
		string(EncodeProtobuf(&metav1.Status{Message: "binary"})): "binary", `{"kind":"Status","apiVersion":"v1","message":"text"}`: "text",
		`{"message":"no kind"}`: "no kind", `{}`: `{}`, "404 page not found": "404 page not found", "\xff" + strings.Repeat("x", 1000): "?" + strings.Repeat("x", 199),
	} {
		if got := message([]byte(body)); got != want {
			t.Errorf("%q: %q, want %q", body, got, want)
		}
	}
}

// TestMarksAreFound checks that a mark that markText writes is found in any text.
func TestMarksAreFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		run := rapid.Int64Range(0, 99_999_999_999_999).Draw(t, "run")
		i := rapid.IntRange(0, 99_999_999).Draw(t, "change")
		frame := rapid.StringMatching(`[a-z"{}:]{0,50}`).Draw(t, "before") + markText(run, i) + rapid.StringMatching(`[a-z"]{0,50}`).Draw(t, "after")
		gotRun, got, ok := marked([]byte(frame))
		if !ok || gotRun != run || got != i {
			t.Fatalf("%q: run %d, index %d, found %v; want run %d, index %d", frame, gotRun, got, ok, run, i)
		}
		event := []byte("x" + markText(1, 2) + "y")
		if !CopyMark(event, []byte(frame)) || string(event) != "x"+markText(run, i)+"y" {
			t.Fatalf("after CopyMark, the event is %q", event)
		}
	})
	for _, frame := range []string{"", "LBSEQ", "LBSEQ12", "LBSEQ" + strings.Repeat("x", 22)} {
		if _, _, ok := marked([]byte(frame)); ok {
			t.Errorf("found a mark in %q, which has none", frame)
		}
		if CopyMark([]byte(markText(1, 1)), []byte(frame)) || CopyMark([]byte(frame), nil) {
			t.Errorf("CopyMark succeeded with %q, which has no mark", frame)
		}
	}
}
