package proctest

import (
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests of m, for a TestMain, and exits. It fails if they leave goroutines behind.
func Main(m *testing.M, ignored ...goleak.Option) {
	ignored = append(ignored, // for the life of the process
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
	goleak.VerifyTestMain(Settling{m, ignored}, ignored...)
}

// Settling runs tests, and then waits a minute for the goroutines that libraries end without waiting for them, which
// takes long on a busy machine. Some end only when the garbage collector finds that a transport is unused.
type Settling struct {
	goleak.TestingM
	Ignored []goleak.Option
}

// Run implements goleak.TestingM.
func (s Settling) Run() int {
	code := s.TestingM.Run()
	for end := time.Now().Add(time.Minute); code == 0 && time.Now().Before(end) && goleak.Find(s.Ignored...) != nil; {
		runtime.GC()
	}
	return code
}
