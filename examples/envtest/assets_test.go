package boxes_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// assets fills dir with the programs that envtest needs: kubectl, and Larder as kube-apiserver and
// as etcd, built from the source around this module. Unlike go build, go run keeps linked programs in the build cache.
func assets(dir string) error {
	for program, source := range map[string]string{"larder": "./cmd/larder", "kubectl": "k8s.io/kubernetes/cmd/kubectl"} {
		build := exec.Command("go", "run", "-exec", "cp", source, filepath.Join(dir, program))
		build.Dir = filepath.Join("..", "..")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", build, err, out)
		}
	}
	for _, name := range []string{"kube-apiserver", "etcd"} {
		if err := os.Symlink("larder", filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
