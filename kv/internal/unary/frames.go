package unary

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// take handles a frame. After an error the connection cannot be used any more.
func (c *Conn) take(frame http2.Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frames++
	switch frame := frame.(type) {
	case *http2.DataFrame:
		return c.dataLocked(frame)
	case *http2.HeadersFrame:
		c.headers = headers{stream: frame.StreamID, last: frame.StreamEnded()}
		return c.headersLocked(frame.HeaderBlockFragment(), frame.HeadersEnded())
	case *http2.ContinuationFrame:
		return c.headersLocked(frame.HeaderBlockFragment(), frame.HeadersEnded())
	case *http2.RSTStreamFrame:
		c.resetLocked(frame)
	case *http2.SettingsFrame:
		if !frame.IsAck() {
			return c.settingsLocked(frame)
		}
	case *http2.PingFrame:
		if !frame.IsAck() {
			_ = c.framer.WritePing(true, frame.Data)
			c.scheduleFlush()
		}
	case *http2.WindowUpdateFrame:
		if frame.StreamID == 0 {
			c.window += int64(frame.Increment)
		}
	case *http2.GoAwayFrame:
		for stream, k := range c.inFlight {
			if stream > frame.LastStreamID {
				c.endLocked(stream, k, ErrUnsent) // the peer has not processed it, and will not
			}
		}
		c.retireLocked()
	case *http2.PushPromiseFrame:
		return fmt.Errorf("%v", frame.Header())
	}
	return nil
}

func (c *Conn) dataLocked(frame *http2.DataFrame) error {
	if c.received += frame.Length; c.received >= connectionWindow/4 {
		_ = c.framer.WriteWindowUpdate(0, c.received)
		c.received = 0
		c.scheduleFlush()
	}
	k := c.inFlight[frame.StreamID]
	if k == nil { // it was cancelled
		return nil
	}
	k.buffer = append(k.buffer, frame.Data()...)
	if len(k.buffer) >= prefix && len(k.buffer) > prefix+int(binary.BigEndian.Uint32(k.buffer[1:])) {
		return fmt.Errorf("response to call %d is longer than its announced length", frame.StreamID)
	}
	if frame.StreamEnded() {
		c.endLocked(frame.StreamID, k, nil)
		return nil
	}
	if k.unacked += frame.Length; k.unacked >= streamWindow/4 {
		_ = c.framer.WriteWindowUpdate(frame.StreamID, k.unacked)
		k.unacked = 0
		c.scheduleFlush()
	}
	return nil
}

// headers is a block of headers or trailers that is being read.
type headers struct {
	stream uint32
	last   bool // it ends the stream
}

// headersLocked decodes a part of the headers. It also decodes headers of a cancelled call, to keep HPACK's state.
func (c *Conn) headersLocked(part []byte, ended bool) error {
	if _, err := c.decoder.Write(part); err != nil || !ended {
		return err
	}
	if err := c.decoder.Close(); err != nil {
		return err
	}
	if k := c.inFlight[c.headers.stream]; k != nil && c.headers.last {
		c.endLocked(c.headers.stream, k, nil)
	}
	return nil
}

func (c *Conn) fieldLocked(f hpack.HeaderField) {
	k := c.inFlight[c.headers.stream]
	if k == nil {
		return
	}
	switch f.Name {
	case ":status":
		k.http = f.Value
	case "grpc-status":
		k.code = f.Value
	case "grpc-message":
		k.message = f.Value
	}
}

// resetLocked ends a call.
func (c *Conn) resetLocked(frame *http2.RSTStreamFrame) {
	k := c.inFlight[frame.StreamID]
	switch {
	case k == nil: // it was cancelled
	case frame.ErrCode == http2.ErrCodeRefusedStream: // the peer has not processed it
		c.endLocked(frame.StreamID, k, ErrUnsent)
	default:
		c.endLocked(frame.StreamID, k, status.Errorf(codes.Internal, "stream terminated by RST_STREAM with error code: %v", frame.ErrCode))
	}
}

func (c *Conn) settingsLocked(frame *http2.SettingsFrame) error {
	for i := range frame.NumSettings() {
		switch s := frame.Setting(i); s.ID {
		case http2.SettingHeaderTableSize:
			c.encoder.SetMaxDynamicTableSizeLimit(s.Val)
		case http2.SettingMaxConcurrentStreams:
			c.limit = s.Val
		case http2.SettingInitialWindowSize:
			c.opening = int64(s.Val)
		}
	}
	_ = c.framer.WriteSettingsAck()
	c.scheduleFlush()
	return nil
}

// scheduleFlush makes runFlushes write the bytes in out.
func (c *Conn) scheduleFlush() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}
