package security

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/larder-io/larder/internal/proctest"
)

// floodHTTP2 checks that a client that opens streams or sends header fields endlessly is disconnected, and does not
// delay other clients.
func floodHTTP2(t *testing.T, f *hardenedServer) {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "h"}, {":path", "/api/v1/pods"}} {
		if err := encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}); err != nil {
			t.Fatal(err)
		}
	}
	for name, flood := range map[string]func(framer *http2.Framer, i uint32) error{
		"streams that are reset immediately": func(framer *http2.Framer, i uint32) error {
			if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
				return err
			}
			return framer.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		},
		"an endless header": func(framer *http2.Framer, i uint32) error {
			if i == 0 {
				return framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true})
			}
			return framer.WriteContinuation(1, false, []byte{0, 1, 'a', 1, 'b'})
		},
		"endless settings": func(framer *http2.Framer, _ uint32) error {
			return framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
		},
	} {
		conn := proctest.DialTLS(t, f.address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		framer := http2.NewFramer(conn, conn)
		_, err := conn.Write([]byte(http2.ClientPreface))
		if err == nil {
			err = framer.WriteSettings()
		}
		calmed := make(chan bool, 1)
		go func() {
			calm := false
			for {
				frame, err := framer.ReadFrame()
				if away, ok := frame.(*http2.GoAwayFrame); ok {
					calm = calm || away.ErrCode == http2.ErrCodeEnhanceYourCalm
				}
				if err != nil {
					var late net.Error
					calmed <- calm && !(errors.As(err, &late) && late.Timeout())
					return
				}
			}
		}()
		const most = 200_000
		sent := uint32(0)
		for ; err == nil && sent < most; sent++ {
			err = flood(framer, sent)
		}
		if !<-calmed {
			t.Errorf("%s: the connection is open after %d frames, error %v", name, sent, err)
		}
		if a := f.send(t, admin, "GET", "/version", ""); a.code != http.StatusOK {
			t.Errorf("%s: other requests get status %d", name, a.code)
		}
	}
}
