package reads

import (
	"bytes"
	"container/list"
	"encoding/binary"
	"hash/crc32"
	"io"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/flate"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/wire"
)

// Stitcher compresses lists piece by piece and caches the pieces, so a later list compresses only changed pieces.
//
// A list is cut into runs of items. The hash of an object's key decides whether a run may begin with
// that object, and runs have a minimum length. So a changed object affects only its run, and a created or
// deleted object little more. Each run is compressed separately and flushed, so that it ends at a byte boundary
// and does not refer to earlier bytes. Runs with uncompressed blocks between them form one stream.
//
// Pieces are found by the identity of their objects, but do not keep the objects in memory. The least recently used
// pieces are evicted. One list fills at most half of the limit, so that it does not evict its own pieces. The rest of
// the list is compressed each time, while it is sent, so that a slow client does not keep its own pieces in memory.
//
// If lists need the same piece at the same time, one makes it and the others wait.
type Stitcher struct {
	limit   int64
	made    atomic.Int64
	flights sync.Map // of pieceKey to a func() (*piece, error) that makes the piece once

	mu   sync.Mutex // a leaf; nothing is compressed under it
	kept map[pieceKey]*list.Element
	used int64
	// order holds *keptPiece, those used last first.
	// Invariant: it has the elements of kept, and used is the sum of their costs.
	order list.List
}

// pieceKey identifies a piece by its first object. The last run of a list has its own key, because a namespace may end
// where the whole resource continues.
type pieceKey struct {
	encoder weak.Pointer[encoding.Encoder]
	first   weak.Pointer[cache.Object]
	short   bool
}

type keptPiece struct {
	key   pieceKey
	piece *piece
}

// piece is a run of items, compressed. It is immutable.
type piece struct {
	objects []weak.Pointer[cache.Object]
	perRun  int             // average number of objects in a run when it was cut
	data    []byte          // deflate blocks, none of them the last
	seal    invariants.Seal // of data
	raw     int             // uncompressed bytes of data
	sum     int             // of wire.Writer.ItemSize
	crc     uint32          // of the raw bytes
	power   uint32          // crcPower(raw)
}

// shared returns the compressed bytes, which all lists share and only read.
func (p *piece) shared() []byte {
	p.seal.Check(p.data, "httpapi: a piece of a compressed list")
	return p.data
}

const (
	// runBytes is the approximate size of a run before compression. A larger run costs more to compress again after a
	// change, and many small ones compress less.
	runBytes = 128 << 10
	// A run has at least the average number of objects divided by shortRun. If no object's hash ends it, it is cut at
	// longRun times the average.
	shortRun = 2
	longRun  = 3
	// stitchFrom is the minimum size of canonical encodings of stitched lists.
	stitchFrom = 2 * exchange.CompressFrom
	// pieceOverhead is the memory of a cached piece besides its bytes. weakOverhead is the memory of each of its weak
	// pointers to objects.
	pieceOverhead = 300
	weakOverhead  = 48
)

// NewStitcher returns a Stitcher that keeps pieces of limit bytes in all.
func NewStitcher(limit int64) *Stitcher {
	return &Stitcher{limit: limit, kept: map[pieceKey]*list.Element{}}
}

// Bytes returns the memory of the kept pieces.
func (s *Stitcher) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// stitch compresses a list. It returns nil for a list that is too small to benefit. Everything that can
// fail does so here.
func (s *Stitcher) stitch(encoder *encoding.Encoder, meta wire.ListMeta, objects []*cache.Object) (*stitchedList, error) {
	body := encoding.BodyBytes(objects)
	if body < stitchFrom {
		return nil, nil
	}
	mean := body / int64(len(objects))
	perRun := max(1, 1<<bits.Len(uint(runBytes/max(1, mean)))>>1)
	from := pieceSource{encoder, encoder.Source(objects)}
	if encoder.Planned() {
		from.source = encoder.Uncached() // the piece is cached instead
	}
	l := &stitchedList{separator: separator(encoder), stitcher: s, from: from, perRun: perRun}
	owner, rest, sum, cost := weak.Make(encoder), objects, 0, int64(0)
	for len(rest) > 0 && cost <= s.limit/2 {
		p, err := s.piece(from, owner, rest, perRun)
		if err != nil {
			return nil, err
		}
		l.pieces = append(l.pieces, p)
		sum += p.sum
		cost += p.cost()
		rest = rest[len(p.objects):]
	}
	restSum, err := from.sum(rest)
	if err != nil {
		return nil, err
	}
	sum += restSum
	l.rest = slices.Clone(rest)
	l.header = encoder.AppendListHeader(nil, meta, len(objects), sum)
	l.footer = encoder.AppendListFooter(nil, meta, len(objects))
	l.sum()
	return l, nil
}

// separator is the bytes between two items.
func separator(w wire.Writer) []byte {
	item := []byte("{}")
	between := w.AppendItemHeader(nil, 1, item)
	return between[:len(between)-len(w.AppendItemHeader(nil, 0, item))]
}

// piece returns the piece at the beginning of rest.
func (s *Stitcher) piece(from pieceSource, owner weak.Pointer[encoding.Encoder], rest []*cache.Object, perRun int) (*piece, error) {
	key := pieceKey{encoder: owner, first: weak.Make(rest[0])}
	if p := s.find(key); p != nil && s.fits(p, rest) {
		return p, nil
	}
	n := s.run(rest, perRun)
	if n == len(rest) {
		key.short = true
		if p := s.find(key); p != nil && s.fits(p, rest) {
			return p, nil
		}
	}
	flight, _ := s.flights.LoadOrStore(key, sync.OnceValues(func() (*piece, error) {
		defer s.flights.Delete(key)
		if p := s.find(key); p != nil && s.fits(p, rest) {
			return p, nil // another flight ended in between
		}
		p, err := s.newPiece(from, rest[:n], perRun)
		if err == nil {
			s.keep(key, p)
		}
		return p, err
	}))
	if p, err := flight.(func() (*piece, error))(); err == nil && s.fits(p, rest) {
		return p, nil
	}
	return s.newPiece(from, rest[:n], perRun) // the other list failed, or made its piece of other objects
}

// run returns the length of the run at the beginning of rest.
func (s *Stitcher) run(rest []*cache.Object, perRun int) int {
	n := 1
	for n < len(rest) && !s.ends(rest, n, perRun) {
		n++
	}
	return n
}

// ends reports whether a run of about perRun objects ends after the n-th of rest.
func (s *Stitcher) ends(rest []*cache.Object, n, perRun int) bool {
	least := perRun / shortRun
	if n < least || n >= longRun*perRun {
		return n >= least
	}
	return xxhash.Sum64String(rest[n].Key())&uint64(max(perRun-least, 1)-1) == 0
}

// fits reports whether p has the first objects of rest and ends at the end of a run.
func (s *Stitcher) fits(p *piece, rest []*cache.Object) bool {
	n := len(p.objects)
	if n > len(rest) {
		return false
	}
	for i, o := range p.objects {
		if o.Value() != rest[i] {
			return false
		}
	}
	return n == len(rest) || s.ends(rest, n, p.perRun)
}

func (s *Stitcher) find(key pieceKey) *piece {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.kept[key]
	if !ok {
		return nil
	}
	s.order.MoveToFront(e)
	return e.Value.(*keptPiece).piece
}

// keep stores p under key, in place of any earlier piece, and evicts others until the limit holds. A piece that is
// larger than the limit is not kept.
func (s *Stitcher) keep(key pieceKey, p *piece) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.kept[key]; ok {
		s.dropLocked(e)
	}
	if p.cost() > s.limit {
		return
	}
	s.kept[key] = s.order.PushFront(&keptPiece{key, p})
	s.used += p.cost()
	for s.used > s.limit {
		s.dropLocked(s.order.Back())
	}
	if invariants.Enabled {
		invariants.Assertf(len(s.kept) == s.order.Len() && s.used >= 0, "httpapi: %d pieces in the order of %d, %d bytes", s.order.Len(), len(s.kept), s.used)
	}
}

func (s *Stitcher) dropLocked(e *list.Element) {
	k := s.order.Remove(e).(*keptPiece)
	k.piece.shared()
	delete(s.kept, k.key)
	s.used -= k.piece.cost()
}

func (p *piece) cost() int64 {
	return int64(len(p.data)) + pieceOverhead + weakOverhead*int64(len(p.objects))
}

// pieceSource has the items of pieces and their separators.
type pieceSource struct {
	wire.Writer
	source encoding.ItemSource
}

// item returns the item of o, and room, in which it may be.
func (from pieceSource) item(room []byte, o *cache.Object) (item, grown []byte, err error) {
	item, room, err = from.source.Next(room[:0], o)
	if item == nil {
		item = room
	}
	return item, room, err
}

// sum returns the sum of wire.Writer.ItemSize of objects, or the error of an unreadable one. It returns 0 for JSON, whose
// list header does not have the sum.
func (from pieceSource) sum(objects []*cache.Object) (sum int, err error) {
	if from.source.MediaType == encoding.JSON {
		return 0, readable(objects)
	}
	var item, room []byte
	for _, o := range objects {
		if item, room, err = from.item(room, o); err != nil {
			return 0, err
		}
		sum += from.ItemSize(item)
	}
	return sum, nil
}

// deflater compresses pieces.
type deflater struct {
	out  bytes.Buffer
	z    *flate.Writer
	head []byte
	item []byte
}

var deflaters = sync.Pool{New: func() any {
	d := new(deflater)
	z, err := flate.NewWriter(&d.out, flate.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	d.z = z
	return d
}}

func (d *deflater) release() {
	if invariants.Enabled {
		invariants.Overwrite(d.out.Bytes())
		invariants.Overwrite(d.head)
		invariants.Overwrite(d.item)
	}
	deflaters.Put(d)
}

// newPiece compresses the items of objects with their separators.
func (s *Stitcher) newPiece(from pieceSource, objects []*cache.Object, perRun int) (*piece, error) {
	s.made.Add(1)
	d := deflaters.Get().(*deflater)
	defer d.release()
	d.out.Reset()
	d.z.Reset(&d.out)
	p := &piece{perRun: perRun, objects: make([]weak.Pointer[cache.Object], 0, len(objects))}
	for i, o := range objects {
		item, room, err := from.item(d.item, o)
		if err != nil {
			return nil, err
		}
		d.item = room
		p.objects = append(p.objects, weak.Make(o))
		p.sum += from.ItemSize(item)
		d.head = from.AppendItemHeader(d.head[:0], i, item)
		for _, b := range [2][]byte{d.head, item} {
			p.raw += len(b)
			p.crc = crc32.Update(p.crc, crc32.IEEETable, b)
			if _, err := d.z.Write(b); err != nil {
				return nil, err // writing to a buffer does not fail
			}
		}
	}
	if err := d.z.Flush(); err != nil {
		return nil, err
	}
	p.data, p.power = bytes.Clone(d.out.Bytes()), crcPower(p.raw)
	p.seal = invariants.SealOf(p.data)
	return p, nil
}

// stitchedList is a list as one gzip member.
type stitchedList struct {
	header, separator, footer []byte
	pieces                    []*piece
	size                      int    // of the list, without rest
	length                    int    // of the member; UnknownSize if there is a rest
	crc                       uint32 // of the header and the pieces

	// rest is compressed while it is sent. Its pieces are then added to size and crc.
	rest     []*cache.Object
	stitcher *Stitcher
	from     pieceSource
	perRun   int
}

// gzipHeader says deflate, no name, no time, fastest, unknown system: RFC 1952.
const gzipHeader = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"

const (
	gzipFooter  = 8 // CRC and size
	storedBlock = 5 // before the bytes of a block that is not compressed
)

// sum computes the size, the length and the CRC.
func (l *stitchedList) sum() {
	l.crc, l.size = crc32.ChecksumIEEE(l.header), len(l.header)+len(l.footer)
	l.length = len(gzipHeader) + storedBlock + len(l.header)
	for i, p := range l.pieces {
		if i > 0 && len(l.separator) > 0 {
			l.length += storedBlock + len(l.separator)
		}
		l.add(i, p)
		l.length += len(p.data)
	}
	l.length += storedBlock + len(l.footer) + gzipFooter
	if len(l.rest) > 0 {
		l.length = exchange.UnknownSize
	}
}

func (l *stitchedList) WriteTo(w io.Writer) (int64, error) {
	out := exchange.NewChunkWriter(w)
	defer out.Release()
	out.Buf = append(out.Buf, gzipHeader...)
	out.Buf = appendStored(out.Buf, l.header, false)
	for i, p := range l.pieces {
		if i > 0 && len(l.separator) > 0 {
			out.Buf = appendStored(out.Buf, l.separator, false)
		}
		out.Add(p.shared())
	}
	if err := l.writeRest(out); err != nil {
		return out.Written, err
	}
	out.Buf = appendStored(out.Buf, l.footer, true)
	out.Buf = binary.LittleEndian.AppendUint32(out.Buf, crc32.Update(l.crc, crc32.IEEETable, l.footer))
	out.Buf = binary.LittleEndian.AppendUint32(out.Buf, uint32(l.size))
	out.Flush()
	return out.Written, out.Err
}

// add adds the i-th piece, and the separator before it, to size and crc.
func (l *stitchedList) add(i int, p *piece) {
	if i > 0 {
		l.crc = crc32.Update(l.crc, crc32.IEEETable, l.separator)
		l.size += len(l.separator)
	}
	l.crc = crcJoin(l.crc, p.crc, p.power)
	l.size += p.raw
}

// writeRest compresses and writes the rest.
func (l *stitchedList) writeRest(out *exchange.ChunkWriter) error {
	for i := len(l.pieces); len(l.rest) > 0 && out.Err == nil; i++ {
		p, err := l.stitcher.newPiece(l.from, l.rest[:l.stitcher.run(l.rest, l.perRun)], l.perRun)
		if err != nil {
			return err
		}
		if len(l.separator) > 0 {
			out.Buf = appendStored(out.Buf, l.separator, false)
		}
		out.Add(p.data)
		l.add(i, p)
		l.rest = l.rest[len(p.objects):]
	}
	return out.Err
}

func (l *stitchedList) Close() error { return nil }

// appendStored appends an uncompressed block (RFC 1951, 3.2.4). dst ends on a byte boundary. p is shorter than 64
// KiB.
func appendStored(dst, p []byte, last bool) []byte {
	first := byte(0)
	if last {
		first = 1
	}
	dst = append(dst, first)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(p)))
	dst = binary.LittleEndian.AppendUint16(dst, ^uint16(len(p)))
	return append(dst, p...)
}

// Collectors returns metrics of the kept and the compressed bytes of lists.
func (s *Stitcher) Collectors() []prometheus.Collector {
	kept := prometheus.GaugeOpts{Name: "larder_compressed_list_bytes", Help: "Bytes of compressed pieces of lists, kept to be sent again."}
	made := prometheus.CounterOpts{Name: "larder_compressed_list_pieces_total", Help: "Counter of pieces of lists that were compressed."}
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(kept, func() float64 { return float64(s.Bytes()) }),
		prometheus.NewCounterFunc(made, func() float64 { return float64(s.made.Load()) }),
	}
}

// Checksums of concatenated bytes are computed from the checksums of the parts: appending n bytes multiplies a CRC by
// x^8n, modulo the polynomial, before the CRC of the n bytes is added. Polynomials have their highest power in the
// lowest bit.

const (
	crcOne   = 1 << 31 // x^0
	crcShift = 1 << 23 // x^8, one byte
)

// crcMul multiplies two polynomials modulo the polynomial of CRC-32.
func crcMul(a, b uint32) uint32 {
	var product uint32
	for bit := uint32(crcOne); bit != 0; bit >>= 1 {
		if a&bit != 0 {
			product ^= b
		}
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return product
}

// crcPower returns the factor by which a CRC is multiplied when n bytes are appended.
func crcPower(n int) uint32 {
	power, square := uint32(crcOne), uint32(crcShift)
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			power = crcMul(power, square)
		}
		square = crcMul(square, square)
	}
	return power
}

// crcJoin is the CRC of bytes with CRC a, followed by bytes with CRC b whose length
// has the crcPower power.
func crcJoin(a, b, power uint32) uint32 { return crcMul(power, a) ^ b }
