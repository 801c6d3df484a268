package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// longestFrame limits the size of an event.
const longestFrame = 64 << 20

type stream struct {
	conn   *conn
	events *bufio.Scanner
}

// watch opens a watch on a connection. It returns when the server has accepted the watch, or after the Target's
// Timeout.
func (c *conn) watch(r Request) (*stream, error) {
	resp, err := c.send(r)
	c.stopTimer()
	if err != nil {
		return nil, c.explain(err)
	}
	return &stream{c, Events(resp.Body, r.Accept)}, nil
}

// next returns the next encoded event, io.EOF at the end of the watch. The bytes are valid until the next call.
func (s *stream) next() ([]byte, error) {
	if s.events.Scan() {
		return s.events.Bytes(), nil
	}
	return nil, cmp.Or(s.events.Err(), io.EOF)
}

// Events returns a Scanner of the events of a watch in a media type. In protobuf each event has a length prefix, which
// the Scanner omits. In JSON each is a line.
func Events(body io.Reader, accept string) *bufio.Scanner {
	const least = 512
	events := bufio.NewScanner(body)
	events.Buffer(make([]byte, 0, least), longestFrame)
	events.Split(splitLine)
	if strings.HasPrefix(accept, Protobuf) {
		events.Split(splitPrefixed)
	}
	return events
}

// splitLine is a bufio.SplitFunc for lines, which keep their newline.
func splitLine(data []byte, _ bool) (n int, line []byte, err error) {
	if n = bytes.IndexByte(data, '\n') + 1; n > 0 {
		line = data[:n]
	}
	return n, line, nil
}

// splitPrefixed is a bufio.SplitFunc for frames with a length prefix.
func splitPrefixed(data []byte, atEOF bool) (n int, frame []byte, err error) {
	const prefix = 4
	if len(data) >= prefix {
		size := binary.BigEndian.Uint32(data)
		if size > longestFrame { // this may be JSON, so do not wait for the rest
			return 0, nil, bufio.ErrTooLong
		}
		if n = prefix + int(size); n <= len(data) {
			return n, data[prefix:n], nil
		}
	}
	if atEOF && len(data) > 0 {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return 0, nil, nil
}

// typeOf reads the type of an event, which both encodings have at the beginning. It returns Modified for all events
// other than bookmarks and errors.
func typeOf(frame []byte) watch.EventType {
	head := frame[:min(len(frame), 64)]
	switch {
	case bytes.Contains(head, []byte(watch.Bookmark)):
		return watch.Bookmark
	case bytes.Contains(head, []byte(watch.Error)):
		return watch.Error
	}
	return watch.Modified
}

// endsInitial reports whether an event is the bookmark that ends the initial events.
func endsInitial(frame []byte) bool {
	return typeOf(frame) == watch.Bookmark && bytes.Contains(frame, []byte(metav1.InitialEventsAnnotationKey))
}

// readInitial reads the initial events up to the bookmark that ends them, and returns their number and size.
func (s *stream) readInitial() (objects int, size int64, err error) {
	for {
		frame, err := s.next()
		if err != nil {
			return objects, size, fmt.Errorf("bench: initial events: %w", err)
		}
		size += int64(len(frame))
		switch kind := typeOf(frame); {
		case endsInitial(frame):
			return objects, size, nil
		case kind == watch.Error:
			return objects, size, fmt.Errorf("bench: initial events: %q", frame[:min(len(frame), 300)])
		case kind == watch.Modified:
			objects++
		}
	}
}

// WithQuery adds parameters to a path that may have some.
func WithQuery(path string, parameters ...string) string {
	mark := "?"
	if strings.Contains(path, "?") {
		mark = "&"
	}
	return path + mark + strings.Join(parameters, "&")
}
