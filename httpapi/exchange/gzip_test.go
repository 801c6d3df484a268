package exchange

import "testing"

func TestGzipIsAskedForByName(t *testing.T) {
	for header, want := range map[string]bool{"": false, "gzip": true, " gzip ": true, "deflate,gzip": true, "gzip;q=1": false, "x-gzip": false, "GZIP": false, "br, gzip, x": true} {
		if AcceptsGzip([]byte(header)) != want {
			t.Errorf("%q: want %v", header, want)
		}
	}
}
