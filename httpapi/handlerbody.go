package httpapi

import (
	"io"
	"net/http"
	"sync"

	"github.com/larder-io/larder/httpapi/socket"
)

// handlerBody is what a net/http handler reads a body from. The handler may outlive
// its request, so it does not touch the connection: its first Read asks the goroutine
// that serves the connection for the body, and gets it whole.
type handlerBody struct {
	asked  chan struct{} // closed by the first Read
	answer chan struct{} // closed when data and err are there
	ask    sync.Once
	reply  sync.Once
	data   []byte
	err    error // after data
}

func newHandlerBody() *handlerBody {
	return &handlerBody{asked: make(chan struct{}), answer: make(chan struct{})}
}

// Read waits for the body.
func (b *handlerBody) Read(p []byte) (int, error) {
	b.ask.Do(func() { close(b.asked) })
	<-b.answer
	if len(b.data) == 0 {
		return 0, b.err
	}
	n := copy(p, b.data)
	b.data = b.data[n:]
	return n, nil
}

// Close does nothing: what was not read the connection deals with.
func (b *handlerBody) Close() error { return nil }

// give lets Read go on. The first call counts.
func (b *handlerBody) give(data []byte, err error) {
	b.reply.Do(func() {
		b.data, b.err = data, err
		close(b.answer)
	})
}

// wanted is closed when the handler asks for the body; nil if there is none.
func (x *chain) wanted() <-chan struct{} {
	if x.lazy == nil {
		return nil
	}
	return x.lazy.asked
}

// supply reads the body for the handler and reports whether it came in time.
func (x *chain) supply() bool {
	data, err := x.Carrier.ReadBody(x.Deadline)
	if socket.IsTimeout(err) {
		return false
	}
	if err == nil {
		err = io.EOF
	}
	x.lazy.give(data, err)
	return true
}

// endBody lets nobody wait for a body that will not be read any more.
func (x *chain) endBody() {
	if x.lazy != nil {
		x.lazy.give(nil, http.ErrBodyReadAfterClose)
	}
}
