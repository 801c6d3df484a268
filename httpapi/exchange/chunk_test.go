package exchange

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// writeSizes remembers how much was written at a time.
type writeSizes struct {
	bytes.Buffer
	sizes []int
}

// Write implements io.Writer.
func (w *writeSizes) Write(p []byte) (int, error) {
	w.sizes = append(w.sizes, len(p))
	return w.Buffer.Write(p)
}

// TestChunks checks that gathered bytes arrive in order, in whole TLS records.
func TestChunks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var out writeSizes
		var want []byte
		c := NewChunkWriter(&out)
		sizes := rapid.OneOf(rapid.IntRange(0, 10), rapid.IntRange(0, 9000), rapid.IntRange(0, 5*ChunkSize), rapid.SampledFrom([]int{RecordSize, ChunkSize - 1, ChunkSize, ChunkSize + 1}))
		for i := range rapid.IntRange(0, 60).Draw(t, "pieces") {
			head := bytes.Repeat([]byte{byte(i)}, rapid.IntRange(0, 20).Draw(t, "head"))
			body := bytes.Repeat([]byte{byte(i + 100)}, sizes.Draw(t, "body"))
			want = append(append(want, head...), body...)
			c.Buf = append(c.Buf, head...)
			c.Add(body)
		}
		c.Flush()
		c.Release()
		if !bytes.Equal(out.Bytes(), want) || c.Written != int64(len(want)) {
			t.Fatalf("wrote %d bytes, counted %d, want %d", out.Len(), c.Written, len(want))
		}
		for i, n := range out.sizes {
			if n%RecordSize != 0 && i < len(out.sizes)-1 || n == 0 {
				t.Errorf("write %d of %d is of %d bytes", i, len(out.sizes), n)
			}
		}
	})
}
