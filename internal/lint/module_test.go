package lint

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestModuleInstalls checks that go.mod has no replace and exclude directives, which "go install …@version" refuses,
// and that it has all requirements.
func TestModuleInstalls(t *testing.T) {
	root := filepath.Join("..", "..")
	output := func(args ...string) []byte {
		cmd := exec.Command("go", args...)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go %v: %v", args, err)
		}
		return out
	}
	var mod struct{ Replace, Exclude []any }
	if err := json.Unmarshal(output("mod", "edit", "-json"), &mod); err != nil {
		t.Fatal(err)
	}
	if len(mod.Replace) > 0 || len(mod.Exclude) > 0 {
		t.Errorf("go.mod replaces %v and excludes %v: require versions that need neither", mod.Replace, mod.Exclude)
	}
	output("list", "-mod=readonly", "-deps", "-test", "./...")
}
