package datadir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

func TestMain(m *testing.M) { proctest.Main(m) }

func TestDataDir(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	held := filepath.Join(root, "held")
	holder, err := Open(held, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { holder.Close() })
	for _, test := range []struct{ name, path, want string }{
		{"a file", file, "not a directory"},
		{"below a file", filepath.Join(file, "x"), "not a directory"},
		{"in use", held, "in use by another process"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Open(test.path, nil)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, test.want)
			}
		})
	}
}
