package http1

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(serverVariable); role != "" {
		fmt.Fprintln(os.Stderr, runServer(role))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m,
		// fasthttp keeps the Date header current for the life of the process.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
	)
}
