package proctest

import (
	"fmt"
	"os/exec"
)

// Build builds a program, named by the path of its package, and writes it to file. flags are further flags of the go
// command. `go run` keeps the programs that it links in the build cache and links them without debugging
// information, so among several test binaries only the first one waits for the linker.
func Build(file, program string, flags ...string) error {
	args := append([]string{"run", "-exec", "cp"}, flags...)
	if out, err := exec.Command("go", append(args, program, file)...).CombinedOutput(); err != nil {
		return fmt.Errorf("proctest: go %v: %w\n%s", args, err, out)
	}
	return nil
}
