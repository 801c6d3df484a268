package proctest

import "os"

// ShortTemp makes /tmp the directory for temporary files if the name of the usual one leaves no
// room for the path of a unix socket, which has about a hundred bytes. TestMain calls it.
func ShortTemp() {
	const long = 30
	if len(os.TempDir()) <= long {
		return
	}
	if err := os.Setenv("TMPDIR", "/tmp"); err != nil {
		panic(err)
	}
}
