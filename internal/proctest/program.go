package proctest

import (
	"os"
	"syscall"
)

// WriteProgram writes a program that can be started at once. A process that is forked while the file is open
// has it open, too, until it executes another program, and the kernel starts no file that is open for writing.
func WriteProgram(file, text string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(file, []byte(text), 0o700)
}
