package bench

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// errStream means that a watch sent something other than events.
var errStream = errors.New("malformed watch stream")

// longestFrame limits the size of an event.
const longestFrame = 64 << 20

type stream struct {
	conn  *conn
	lines *bufio.Reader // for JSON; nil for protobuf
	buf   []byte        // for lines longer than the buffer of lines
	Frames
}

// watch opens a watch on a connection. It returns when the server has accepted the watch, or after the Target's
// Timeout.
func (c *conn) watch(r Request) (*stream, error) {
	resp, err := c.send(r)
	c.stopTimer()
	if err != nil {
		return nil, c.explain(err)
	}
	s := &stream{conn: c, Frames: Frames{From: resp.Body}}
	if !strings.HasPrefix(r.Accept, Protobuf) {
		s.lines = bufio.NewReaderSize(s.From, smallBuffer)
	}
	return s, nil
}

// next returns the next encoded event, io.EOF at the end of the watch. The bytes are valid until the next call.
func (s *stream) next() ([]byte, error) {
	if s.lines != nil {
		return s.line()
	}
	return s.Next()
}

// Frames reads the events of a watch in protobuf. Each event has a length prefix.
type Frames struct {
	From io.Reader

	prefix [4]byte
	frame  []byte
}

// Next returns the next event, io.EOF at the end of the watch. The bytes are valid until the next call.
func (f *Frames) Next() ([]byte, error) {
	const least = 512
	if _, err := io.ReadFull(f.From, f.prefix[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(f.prefix[:]))
	if n > longestFrame {
		return nil, fmt.Errorf("bench: %w: a frame of %d bytes", errStream, n)
	}
	if cap(f.frame) < n {
		f.frame = make([]byte, 0, max(n+n/4, least))
	}
	if _, err := io.ReadFull(f.From, f.frame[:n]); err != nil {
		return nil, fmt.Errorf("bench: %w: %w", errStream, err)
	}
	return f.frame[:n], nil
}

func (s *stream) line() ([]byte, error) {
	s.buf = s.buf[:0]
	for {
		part, err := s.lines.ReadSlice('\n')
		if err == nil && len(s.buf) == 0 {
			return part, nil
		}
		s.buf = append(s.buf, part...)
		if err == nil {
			return s.buf, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
		if len(s.buf) > longestFrame {
			return nil, fmt.Errorf("bench: %w: a line of more than %d bytes", errStream, longestFrame)
		}
	}
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
