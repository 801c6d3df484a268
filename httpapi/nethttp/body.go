package nethttp

import (
	"sync"
	"sync/atomic"
	"time"
)

// body is the body of a request for a net/http handler. The handler may outlive its request, so it does
// not read the connection: its first Read asks the connection's goroutine for the whole body.
type body struct {
	asked  chan struct{} // closed by the first Read
	answer chan struct{} // closed when data and err are there
	ask    sync.Once
	reply  sync.Once
	waited atomic.Int64 // nanoseconds in which Read waited
	data   []byte
	err    error // after data
}

func newBody() *body {
	return &body{asked: make(chan struct{}), answer: make(chan struct{})}
}

// Read waits for the body.
func (b *body) Read(p []byte) (int, error) {
	b.ask.Do(func() {
		began := time.Now()
		close(b.asked)
		<-b.answer
		b.waited.Add(int64(time.Since(began)))
	})
	<-b.answer
	if len(b.data) == 0 {
		return 0, b.err
	}
	n := copy(p, b.data)
	b.data = b.data[n:]
	return n, nil
}

// Close does nothing: the connection deals with what was not read.
func (b *body) Close() error { return nil }

// give lets Read go on. The first call counts.
func (b *body) give(data []byte, err error) {
	b.reply.Do(func() {
		b.data, b.err = data, err
		close(b.answer)
	})
}
