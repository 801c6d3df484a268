package httpapi

import (
	"bytes"
	"testing"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/httpapi/routes"
)

func TestMain(m *testing.M) {
	answerOnce()
	goleak.VerifyTestMain(m,
		// fasthttp keeps the Date header current for the life of the process.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
	)
}

// answerOnce makes fasthttp start the goroutine that keeps the Date header current, as the first answer does. A
// synctest bubble in which that goroutine started would never end.
func answerOnce() {
	s := newServer(Config{})
	defer s.cancel()
	s.table.Store(routes.New())
	s.http1.Session(&scriptConn{in: bytes.NewReader([]byte("GET /x HTTP/1.0\r\n\r\n"))}).Serve()
}
