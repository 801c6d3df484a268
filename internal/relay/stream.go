package relay

import (
	"context"
	"errors"
	"io"
	"net/url"
	"strconv"
	"time"
)

// stream is an open watch of the upstream.
type stream struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	codec  codec
	body   io.ReadCloser
	frame  func() ([]byte, error)
}

// result is an event, or the reason for the end.
type result struct {
	event
	err error
}

// openStream opens a watch of the upstream after a revision. The caller closes it.
func (s *Store) openStream(ctx context.Context, after int64, timeout time.Duration) (*stream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	opening := time.AfterFunc(openTimeout, func() { cancel(errNotOpened) })
	defer opening.Stop()
	body, err := s.get(ctx, "", url.Values{
		"watch":               {"true"},
		"allowWatchBookmarks": {"true"},
		"resourceVersion":     {strconv.FormatInt(after, 10)},
		"timeoutSeconds":      {strconv.Itoa(int(timeout.Seconds()))},
	})
	if err != nil {
		cancel(nil)
		return nil, err
	}
	return &stream{ctx: ctx, cancel: cancel, codec: s.codec, body: body, frame: s.codec.frames(body, maxFrame)}, nil
}

// read returns the next event.
func (st *stream) read() (event, error) {
	frame, err := st.frame()
	switch {
	case errors.Is(err, io.EOF):
		return event{}, cause(st.ctx, errWatchEnded)
	case err != nil:
		return event{}, cause(st.ctx, err)
	}
	return st.codec.event(frame)
}

// copy sends all events to a channel, and then the reason for the end, and closes the stream.
func (st *stream) copy(ctx context.Context, to chan<- result) {
	defer st.close()
	for {
		e, err := st.read()
		select {
		case to <- result{e, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

func (st *stream) close() {
	st.cancel(nil)
	_ = st.body.Close()
}
