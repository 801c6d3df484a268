package httpapi

import (
	"bytes"
	"testing"

	"github.com/larder-io/larder/httpapi/routes"
	"github.com/larder-io/larder/internal/proctest"
)

func TestMain(m *testing.M) {
	respondOnce()
	proctest.Main(m)
}

// respondOnce makes fasthttp start the goroutine that keeps the Date header current, as the first response does. A
// synctest bubble in which that goroutine started would never end.
func respondOnce() {
	s := newServer(Config{})
	defer s.cancel()
	s.table.Store(routes.New())
	s.http1.Session(&scriptConn{in: bytes.NewReader([]byte("GET /x HTTP/1.0\r\n\r\n"))}).Serve()
}
