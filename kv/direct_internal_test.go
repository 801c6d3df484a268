package kv

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/url"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
)

// script is a connection whose peer says what it has to say, whatever it is told.
type script struct {
	net.Conn
	says *bytes.Reader
}

func (s *script) Read(p []byte) (int, error) { return s.says.Read(p) }
func (*script) Write(p []byte) (int, error)  { return len(p), nil }
func (*script) SetDeadline(time.Time) error  { return nil }
func (*script) Close() error                 { return nil }
func (s *script) ask() (*etcdserverpb.ResponseHeader, error) {
	c := newDirectConn(s, &url.URL{Scheme: "http", Host: "member:2379"})
	return c.ask(context.Background(), []byte{0, 0, 0, 0, 0})
}

// answer is what a member says when it is asked once; tests change parts of it.
type answer struct {
	stream          uint32
	status, outcome string
	message         []byte // with gRPC's frame
	before, after   func(*http2.Framer)
}

func newAnswer() *answer {
	message, err := proto.Marshal(&etcdserverpb.RangeResponse{Header: &etcdserverpb.ResponseHeader{ClusterId: 1, Revision: 42, RaftTerm: 3}})
	if err != nil {
		panic(err)
	}
	nothing := func(*http2.Framer) {}
	return &answer{
		stream: 1, status: "200", outcome: "0", before: nothing, after: nothing,
		message: append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...),
	}
}

// bytes is the answer on the wire, behind the settings of a connection.
func (a *answer) bytes() []byte {
	var out, block bytes.Buffer
	framer, encoder := http2.NewFramer(&out, nil), hpack.NewEncoder(&block)
	headers := func(end bool, name, value string) {
		block.Reset()
		encoder.WriteField(hpack.HeaderField{Name: name, Value: value})
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: a.stream, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: end})
	}
	framer.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 100})
	framer.WriteSettingsAck()
	framer.WriteWindowUpdate(0, 1000)
	framer.WritePing(false, [8]byte{1})
	a.before(framer)
	headers(false, ":status", a.status)
	framer.WriteData(a.stream, false, a.message)
	a.after(framer)
	headers(true, "grpc-status", a.outcome)
	return out.Bytes()
}

// TestOnlyWholeAnswersAreTaken: what is a whole answer is taken, nothing else.
func TestOnlyWholeAnswersAreTaken(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*answer)
		taken  bool
	}{
		"whole":                {func(*answer) {}, true},
		"of another request":   {func(a *answer) { a.stream = 3 }, false},
		"no HTTP success":      {func(a *answer) { a.status = "503" }, false},
		"no success":           {func(a *answer) { a.outcome = "14" }, false},
		"no message":           {func(a *answer) { a.message = nil }, false},
		"empty message":        {func(a *answer) { a.message = make([]byte, 5) }, false},
		"compressed":           {func(a *answer) { a.message[0] = 1 }, false},
		"cut":                  {func(a *answer) { a.message = a.message[:len(a.message)-1] }, false},
		"no answer but bytes":  {func(a *answer) { a.message[5] = 0xff }, false},
		"long":                 {func(a *answer) { a.message = make([]byte, maxAnswer+1) }, false},
		"reset":                {func(a *answer) { a.after = func(f *http2.Framer) { f.WriteRSTStream(1, http2.ErrCodeCancel) } }, false},
		"away":                 {func(a *answer) { a.before = func(f *http2.Framer) { f.WriteGoAway(0, http2.ErrCodeNo, nil) } }, false},
		"headers that go on":   {func(a *answer) { a.before = func(f *http2.Framer) { f.WriteContinuation(1, true, nil) } }, false},
		"another frame's type": {func(a *answer) { a.before = func(f *http2.Framer) { f.WriteRawFrame(0xfe, 0, 0, nil) } }, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAnswer()
			c.change(a)
			said := a.bytes()
			header, err := (&script{says: bytes.NewReader(said)}).ask()
			if taken := err == nil; taken != c.taken || taken && header.Revision != 42 {
				t.Errorf("got %v, %v", header, err)
			}
			if _, err := (&script{says: bytes.NewReader(said[:len(said)-1])}).ask(); err == nil {
				t.Error("an answer without its end was taken")
			}
		})
	}
}

// TestDirectIsUsedUp: no more is sent than the peer allows.
func TestDirectIsUsedUp(t *testing.T) {
	c := newDirectConn(&script{says: new(bytes.Reader)}, &url.URL{Scheme: "http", Host: "member:2379"})
	body := make([]byte, http2Window/3)
	for i := range 4 {
		if err := c.send(body); (err == nil) != (i < 3) {
			t.Errorf("request %d: %v", i, err)
		}
	}
	c.sendWindow, c.stream = http2Window, 1<<31+1
	if err := c.send(body); err == nil {
		t.Error("streams do not end")
	}
}

// TestDirectGivesUp: a question ends with its context, whose connection is not used
// again.
func TestDirectGivesUp(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	go func() {
		for buf := make([]byte, 4<<10); ; {
			if _, err := there.Read(buf); err != nil {
				return
			}
		}
	}()
	member := &url.URL{Scheme: "http", Host: "member:2379"}
	d := newDirect([]string{member.String()}, nil, NewEtcd(EtcdConfig{}).logger)
	<-d.wanted
	d.replace(newDirectConn(here, member))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if header := d.ask(ctx); header != nil || d.conn != nil || len(d.wanted) != 1 {
		t.Errorf("got %v over %v", header, d.conn)
	}
	if _, err := here.Write([]byte{0}); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("the connection is open: %v", err)
	}
}

// TestOddMembersAreLeftToTheClient: members that are not reached by plain or encrypted TCP,
// as all others are, are left to etcd's client.
func TestOddMembersAreLeftToTheClient(t *testing.T) {
	for endpoint, want := range map[string]bool{
		"http://127.0.0.1:2379": true, "http://[::1]:2379": true, "https://127.0.0.1:2379": false, "http://127.0.0.1": false,
		"127.0.0.1:2379": false, "unix:///run/etcd": false, "member:2379": false, "": false,
	} {
		if got := newDirect([]string{"http://member:2379", endpoint}, nil, nil) != nil; got != want {
			t.Errorf("%q: %v", endpoint, got)
		}
	}
}

func FuzzDirectAnswer(f *testing.F) {
	whole := newAnswer().bytes()
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		header, err := (&script{says: bytes.NewReader(said)}).ask()
		if (header == nil) != (err != nil) {
			t.Errorf("got %v, %v", header, err)
		}
	})
}

// heard is a connection that keeps what it is sent.
type heard struct {
	script
	frames bytes.Buffer
}

func (h *heard) Write(p []byte) (int, error) { return h.frames.Write(p) }

// pongs returns the answers to pings among what was sent since the last call.
func (h *heard) pongs(t *testing.T) (data [][8]byte) {
	t.Helper()
	framer := http2.NewFramer(nil, &h.frames)
	for h.frames.Len() > 0 {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if ping, ok := frame.(*http2.PingFrame); ok && ping.IsAck() {
			data = append(data, ping.Data)
		}
	}
	return data
}

// TestDirectAnswersPings: a ping is answered once, some requests later, or with the next
// one if there are many.
func TestDirectAnswersPings(t *testing.T) {
	h := &heard{script: script{says: new(bytes.Reader)}}
	c := newDirectConn(h, &url.URL{Scheme: "http", Host: "member:2379"})
	send := func() [][8]byte {
		t.Helper()
		if err := c.send([]byte{0, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		return h.pongs(t)
	}
	pings := func(n byte) {
		t.Helper()
		var out bytes.Buffer
		framer := http2.NewFramer(&out, &out)
		for i := range n {
			framer.WritePing(false, [8]byte{i + 1})
			frame, err := framer.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.control(frame); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.out.Next(len(http2.ClientPreface))
	for round := range 3 {
		pings(1)
		for i := range pongAfter {
			if got, want := send(), i == pongAfter-1; (len(got) == 1 && got[0] == [8]byte{1}) != want || len(got) > 1 {
				t.Fatalf("round %d, request %d answered %v", round, i, got)
			}
		}
		pings(maxPings + 1)
		if got := send(); len(got) != maxPings {
			t.Fatalf("round %d: %d pings at once had %d answers", round, maxPings+1, len(got))
		}
		for range pongAfter { // the last of them
			send()
		}
		if got := send(); len(got) > 0 || len(c.pings) > 0 {
			t.Fatalf("round %d: %v answered again, %v waiting", round, got, c.pings)
		}
	}
}
