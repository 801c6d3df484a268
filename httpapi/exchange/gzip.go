package exchange

import (
	"bytes"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// CompressFrom is the size from which answers are compressed (apiserver
// pkg/endpoints/handlers/responsewriters/writers.go).
const CompressFrom = 128 << 10

// AcceptsGzip reports whether an Accept-Encoding header names gzip without a weight, and the
// feature gate APIResponseCompression is on. Upstream understands no more.
func AcceptsGzip(header []byte) bool {
	for len(header) > 0 {
		token, rest, _ := bytes.Cut(header, []byte{','})
		if string(bytes.TrimSpace(token)) == "gzip" {
			return utilfeature.DefaultFeatureGate.Enabled(features.APIResponseCompression)
		}
		header = rest
	}
	return false
}

// gzips holds writers, which are large.
var gzips = sync.Pool{New: func() any {
	z, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	return z
}}

// GetGzip returns a writer to out, which PutGzip takes back.
func GetGzip(out io.Writer) *gzip.Writer {
	z := gzips.Get().(*gzip.Writer)
	z.Reset(out)
	return z
}

// PutGzip takes back a writer that the caller does not use any more.
func PutGzip(z *gzip.Writer) { gzips.Put(z) }
