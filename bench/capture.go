package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
)

// Capture returns the body of one answer.
func (t *Target) Capture(ctx context.Context, path, accept, encoding string) ([]byte, error) {
	c, err := t.dial(ctx, largeBuffer)
	if err != nil {
		return nil, err
	}
	defer c.close()
	return c.read(call{path: path, accept: accept, encoding: encoding}, t.Timeout)
}

// CaptureWatchList returns the bytes that WatchList reads of one watch, with their frames.
func (t *Target) CaptureWatchList(ctx context.Context, path, accept string) ([]byte, error) {
	c, err := t.dial(ctx, largeBuffer)
	if err != nil {
		return nil, err
	}
	defer c.close()
	s, err := c.watch(call{path: WatchListPath(path), accept: accept}, t.Timeout)
	if err != nil {
		return nil, err
	}
	var all []byte
	for {
		frame, err := s.next()
		if err != nil {
			return nil, fmt.Errorf("bench: initial events: %w", err)
		}
		all = appendFrame(all, frame, accept)
		if kindOf(frame) == bookmark && bytes.Contains(frame, []byte(initialEnd)) {
			return all, nil
		}
	}
}

// CaptureChange changes an object of a watched collection as Watch does, and returns
// the event of it, as it is framed. A server that answers with it, the mark's number
// replaced by another by Remark, has told of another change.
func (t *Target) CaptureChange(ctx context.Context, collection, object, accept string) ([]byte, error) {
	revision, err := t.revision(ctx, collection)
	if err != nil {
		return nil, err
	}
	c, err := t.dial(ctx, largeBuffer)
	if err != nil {
		return nil, err
	}
	defer c.close()
	s, err := c.watch(watchCall(collection, revision, accept), t.Timeout)
	if err != nil {
		return nil, err
	}
	if err := t.Change(ctx, object); err != nil {
		return nil, err
	}
	for {
		frame, err := s.next()
		if err != nil {
			return nil, fmt.Errorf("bench: event: %w", err)
		}
		if _, _, ok := marked(frame); ok {
			return appendFrame(nil, frame, accept), nil
		}
	}
}

// Change changes an object as Watch does.
func (t *Target) Change(ctx context.Context, object string) error {
	return t.once(ctx, markPatch(object, newRun(), 0))
}

// Remark puts the number of the change that patch asks for into a captured event.
// The event is changed in place; false means that one of them has no mark.
func Remark(event, patch []byte) bool {
	run, i, ok := marked(patch)
	at := bytes.Index(event, []byte(mark))
	if !ok || at < 0 {
		return false
	}
	copy(event[at:], markText(run, i))
	return true
}

// appendFrame frames an event as a stream has it.
func appendFrame(dst, frame []byte, accept string) []byte {
	if strings.HasPrefix(accept, Protobuf) {
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(frame)))
	}
	return append(dst, frame...)
}

// Version asks a server which it is.
func (t *Target) Version(ctx context.Context) (string, error) {
	body, err := t.Capture(ctx, "/version", JSON, "")
	if err != nil {
		return "", err
	}
	var version struct{ GitVersion string }
	if err := json.Unmarshal(body, &version); err != nil {
		return "", fmt.Errorf("bench: /version: %w", err)
	}
	return version.GitVersion, nil
}
