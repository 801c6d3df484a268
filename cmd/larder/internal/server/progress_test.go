package server

import (
	"os/exec"
	"testing"
)

// TestPathsAreWordsOfTheShell checks that a user can paste the line that names the kubeconfig, wherever that is.
func TestPathsAreWordsOfTheShell(t *testing.T) {
	const plain = "/data-dir/admin.kubeconfig"
	if got := quote(plain); got != plain {
		t.Errorf("%s is printed as %s", plain, got)
	}
	for _, path := range []string{plain, "/a dir/kubeconfig", "/it's/a", `/"$HOME"/b`, "~/x", "/c;d|e&f", "/g\\h", "/i*[j]?"} {
		out, err := exec.Command("sh", "-c", "export KUBECONFIG="+quote(path)+`; printf %s "$KUBECONFIG"`).Output()
		if string(out) != path || err != nil {
			t.Errorf("%s is printed as %s, which the shell takes for %s, %v", path, quote(path), out, err)
		}
	}
}
