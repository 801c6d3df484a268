package relay

import (
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	ignored := []goleak.Option{
		// fasthttp keeps the Date header current for the life of the process.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
	}
	goleak.VerifyTestMain(settling{m, ignored}, ignored...)
}

// settling runs tests, and then waits for goroutines that have no owner: net/http and client-go end some of theirs
// shortly after the connection or watcher is closed. Others end when the garbage collector finds that a transport with
// certificates is unused.
type settling struct {
	*testing.M
	ignored []goleak.Option
}

// Run implements goleak.TestingM.
func (m settling) Run() int {
	code := m.M.Run()
	for end := time.Now().Add(10 * time.Second); code == 0 && time.Now().Before(end) && goleak.Find(m.ignored...) != nil; {
		runtime.GC()
	}
	return code
}
