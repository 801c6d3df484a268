package managedfields

import (
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

func TestMain(m *testing.M) { proctest.Main(m) }
