package wire_test

import (
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

func TestMain(m *testing.M) {
	// klog starts its flush daemon when it is imported.
	proctest.Main(m)
}
