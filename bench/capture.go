package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
)

// Capture sends one request and returns the body of the response.
func (t *Target) Capture(ctx context.Context, r Request) ([]byte, error) {
	var body bytes.Buffer
	_, err := t.Fetch(ctx, r, &body)
	return body.Bytes(), err
}

// CaptureWatchList returns the framed initial events of a watch whose path is a WatchListPath.
func (t *Target) CaptureWatchList(ctx context.Context, r Request) ([]byte, error) {
	return t.captureEvents(ctx, r, nil, func(frame []byte) (keep, last bool) {
		return true, endsInitial(frame)
	})
}

// captureEvents opens a watch, calls opened unless it is nil, and passes each event to which. It returns the framed
// events for which keep is true. It ends after the event for which last is true.
func (t *Target) captureEvents(ctx context.Context, watch Request, opened func() error, which func(frame []byte) (keep, last bool)) (all []byte, err error) {
	c := t.conn(ctx)
	defer c.close()
	s, err := c.watch(watch)
	if err != nil {
		return nil, err
	}
	if opened != nil {
		if err := opened(); err != nil {
			return nil, err
		}
	}
	for {
		frame, err := s.next()
		if err != nil {
			return nil, fmt.Errorf("bench: events of %s: %w", watch.Path, err)
		}
		keep, last := which(frame)
		if keep {
			all = appendFrame(all, frame, watch.Accept)
		}
		if last {
			return all, nil
		}
	}
}

// CaptureChange changes an object of a watched collection as Watch does, and returns the framed event. CopyMark
// turns the event into that of another change.
func (t *Target) CaptureChange(ctx context.Context, collection, object, accept string) ([]byte, error) {
	revision, err := t.revision(ctx, collection)
	if err != nil {
		return nil, err
	}
	change := func() error { return t.Change(ctx, object) }
	return t.captureEvents(ctx, watchCall(collection, revision, accept), change, func(frame []byte) (keep, last bool) {
		_, _, ok := marked(frame)
		return ok, ok
	})
}

// Change changes an object as Watch does.
func (t *Target) Change(ctx context.Context, object string) error {
	return t.fetch(ctx, markPatch(object, newRun(), 0))
}

// CopyMark overwrites the mark of a captured event with the mark of patch. It returns false if either has no mark.
func CopyMark(event, patch []byte) bool {
	run, i, ok := marked(patch)
	at := bytes.Index(event, []byte(mark))
	if !ok || at < 0 {
		return false
	}
	copy(event[at:], markText(run, i))
	return true
}

// appendFrame appends an event to dst, framed as in a watch of that media type.
func appendFrame(dst, frame []byte, accept string) []byte {
	if strings.HasPrefix(accept, Protobuf) {
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(frame)))
	}
	return append(dst, frame...)
}

// Version returns the version that the server reports.
func (t *Target) Version(ctx context.Context) (string, error) {
	body, err := t.Capture(ctx, Request{Path: "/version", Accept: JSON})
	if err != nil {
		return "", err
	}
	var version struct{ GitVersion string }
	if err := json.Unmarshal(body, &version); err != nil {
		return "", fmt.Errorf("bench: /version: %w", err)
	}
	return version.GitVersion, nil
}
