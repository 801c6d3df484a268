package http2

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// handle handles a frame. A StreamError resets the stream, any other error ends the connection.
func (c *Conn) handle(frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.HeadersFrame:
		return c.headers(f)
	case *http2.DataFrame:
		return c.data(f)
	case *http2.WindowUpdateFrame:
		return c.windowUpdate(f)
	case *http2.RSTStreamFrame:
		return c.rstStream(f)
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.PingFrame:
		return c.ping(f)
	case *http2.GoAwayFrame:
		c.goAway(goAwayDone) // the client opens no more streams on this connection
		return c.checkFlood()
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
		return c.checkFlood()
	default:
		return c.checkFlood() // unknown frames are ignored
	}
}

func (c *Conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return c.checkFlood()
	}
	if f.NumSettings() > maxSettings {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	if err := c.checkFlood(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := f.ForeachSetting(c.setLocked); err != nil {
		return err
	}
	_ = c.framer.WriteSettingsAck()
	return nil
}

// maxSettings limits the settings in one frame.
const maxSettings = 64

func (c *Conn) setLocked(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	if s.ID == http2.SettingInitialWindowSize {
		more := int64(s.Val) - c.initial
		c.initial = int64(s.Val)
		for _, st := range c.streams {
			if st.window += more; st.window > maxWindow {
				return http2.ConnectionError(http2.ErrCodeFlowControl)
			}
		}
		c.wakeLocked()
	}
	return nil
}

func (c *Conn) ping(f *http2.PingFrame) error {
	if !f.IsAck() {
		if err := c.checkFlood(); err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		_ = c.framer.WritePing(true, f.Data)
		return nil
	}
	if f.Data == goAwayMark {
		c.goAway(goAwayDone)
	}
	return c.checkFlood()
}

func (c *Conn) windowUpdate(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.StreamID == 0 {
		if c.window += int64(f.Increment); c.window > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.wakeLocked()
		return nil
	}
	st := c.streams[f.StreamID]
	if st == nil {
		return c.unknownStreamLocked(f.StreamID)
	}
	if st.window += int64(f.Increment); st.window > maxWindow {
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeFlowControl}
	}
	if st.window > 0 && c.window > 0 {
		st.wakeLocked()
	}
	return nil
}

// unknownStreamLocked returns the error for a frame of a stream that is not open: nil if it was open
// before, or if new streams are ignored after GOAWAY.
func (c *Conn) unknownStreamLocked(id uint32) error {
	if id > c.last && id <= c.lastAllowed {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

// rstStream ends a stream that the client has reset.
func (c *Conn) rstStream(f *http2.RSTStreamFrame) error {
	c.mu.Lock()
	st := c.streams[f.StreamID]
	err := c.unknownStreamLocked(f.StreamID)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if st != nil {
		st.clientLeft(errReset)
	}
	return c.checkFlood()
}

// The frames of responses are assembled here, in the buffer that they leave in (RFC 9113, 6). Each
// begins with a head of headSize bytes. The Framer writes all other frames.

const headSize = 9

func appendHead(dst []byte, size int, kind http2.FrameType, flags http2.Flags, id uint32) []byte {
	dst = append(dst, byte(size>>16), byte(size>>8), byte(size), byte(kind), byte(flags))
	return binary.BigEndian.AppendUint32(dst, id)
}

// appendHeaders appends a header block in one or more frames.
func appendHeaders(dst []byte, id uint32, block []byte, end bool) []byte {
	kind, flags := http2.FrameHeaders, http2.Flags(0)
	if end {
		flags = http2.FlagHeadersEndStream
	}
	for {
		piece := block[:min(len(block), initialFrame)]
		block = block[len(piece):]
		if len(block) == 0 {
			flags |= http2.FlagHeadersEndHeaders // a CONTINUATION's is the same
		}
		dst = append(appendHead(dst, len(piece), kind, flags, id), piece...)
		if len(block) == 0 {
			return dst
		}
		kind, flags = http2.FrameContinuation, 0
	}
}
