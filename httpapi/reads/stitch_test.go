package reads

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/internal/registry/wire"
)

// configMapView returns the view of ConfigMaps of a registry.
func configMapView(t testing.TB) *registry.View {
	t.Helper()
	for _, g := range registrytest.New(t, nil).Registry.Groups() {
		for _, v := range g.Versions {
			for _, e := range v.Endpoints {
				if e.GVR.Group == "" && e.GVR.Resource == "configmaps" && e.Subresource == "" {
					return e.View
				}
			}
		}
	}
	t.Fatal("there are no configmaps")
	return nil
}

// configMap makes the object of a key at a revision.
func configMap(t interface{ Fatal(...any) }, v *registry.View, key string, revision int64, size int) *cache.Object {
	ns, name, _ := strings.Cut(key, "/")
	m := corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, ResourceVersion: fmt.Sprint(revision)},
		Data:       map[string]string{"k": strings.Repeat(fmt.Sprintf("%s at %d. ", key, revision), size/20+1)},
	}
	body, err := m.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return cache.NewObject(cache.ObjectConfig{Key: key, Revision: revision, Body: body}, v.Resource.Cache.Schema())
}

// everyEncoder lists the encoders of v.
func everyEncoder(v *registry.View) []*encoding.Encoder {
	var all []*encoding.Encoder
	for _, media := range []encoding.MediaType{encoding.JSON, encoding.Protobuf} {
		for _, projection := range []encoding.Projection{encoding.Full, encoding.Partial, encoding.PartialV1beta1} {
			all = append(all, v.Encoder(media, projection))
		}
	}
	return all
}

// inflate reads one gzip member and nothing else.
func inflate(t interface{ Fatalf(string, ...any) }, data []byte) []byte {
	in := bytes.NewReader(data)
	z, err := gzip.NewReader(in)
	if err != nil {
		t.Fatalf("header: %v", err)
	}
	z.Multistream(false)
	out, err := io.ReadAll(z)
	if err != nil {
		t.Fatalf("body: %v", err)
	}
	if in.Len() > 0 {
		t.Fatalf("%d bytes follow the member", in.Len())
	}
	return out
}

// stitchBoth stitches a list and compares it with the plain one.
func stitchBoth(t *rapid.T, s *Stitcher, f *encoding.Encoder, meta wire.ListMeta, objects []*cache.Object) {
	l, err := s.stitch(f, meta, objects)
	if err != nil {
		t.Fatalf("stitch: %v", err)
	}
	if l == nil {
		t.Fatalf("%d objects are not stitched", len(objects))
	}
	var got bytes.Buffer
	if n, err := l.WriteTo(&got); err != nil || n != int64(got.Len()) || l.length != exchange.UnknownSize && got.Len() != l.length {
		t.Fatalf("wrote %d bytes, %d arrived, announced %d: %v", n, got.Len(), l.length, err)
	}
	if held := l.held(); len(l.pieces) > 1 && held > s.limit {
		t.Fatalf("the list keeps pieces of %d bytes, %d allowed", held, s.limit)
	}
	items := make([][]byte, len(objects))
	for i, o := range objects {
		if items[i], err = f.Item(t.Context(), o); err != nil {
			t.Fatalf("item: %v", err)
		}
	}
	want := wholeList(f, meta, items)
	if plain := inflate(t, got.Bytes()); !bytes.Equal(plain, want) {
		t.Fatalf("%d objects: inflated to %d bytes, want %d", len(objects), len(plain), len(want))
	}
	if l.size != len(want) {
		t.Fatalf("size %d, want %d", l.size, len(want))
	}
}

// held returns the memory of the pieces of l.
func (l *stitchedList) held() (sum int64) {
	for _, p := range l.pieces {
		sum += p.cost()
	}
	return sum
}

// TestStitchedLists lists while objects are created, deleted and changed.
func TestStitchedLists(t *testing.T) {
	v := configMapView(t)
	encoders, stitched := everyEncoder(v), 0
	rapid.Check(t, func(t *rapid.T) {
		s := NewStitcher(rapid.SampledFrom([]int64{0, 20 << 10, 1 << 30}).Draw(t, "limit"))
		byKey, revision := map[string]*cache.Object{}, int64(0)
		put := func(n int) {
			revision++
			key := fmt.Sprintf("ns%d/c%04d", n%3, n)
			byKey[key] = configMap(t, v, key, revision, rapid.SampledFrom([]int{10, 2000, 20000}).Draw(t, "size"))
		}
		for n := range 60 {
			put(n * 3)
		}
		for range rapid.IntRange(1, 6).Draw(t, "lists") {
			for range rapid.IntRange(0, 4).Draw(t, "changes") {
				n := rapid.IntRange(0, 200).Draw(t, "object")
				if rapid.Bool().Draw(t, "delete") {
					delete(byKey, fmt.Sprintf("ns%d/c%04d", n%3, n))
				} else {
					put(n)
				}
			}
			ns := rapid.SampledFrom([]string{"", "ns1/"}).Draw(t, "namespace")
			var objects []*cache.Object
			for key, o := range byKey {
				if strings.HasPrefix(key, ns) {
					objects = append(objects, o)
				}
			}
			slices.SortFunc(objects, func(a, b *cache.Object) int { return strings.Compare(a.Key(), b.Key()) })
			if encoding.BodyBytes(objects) < stitchFrom {
				continue
			}
			stitched++
			f := rapid.SampledFrom(encoders).Draw(t, "encoder")
			stitchBoth(t, s, f, wire.ListMeta{Revision: revision}, objects)
			if s.Bytes() > s.limit {
				t.Fatalf("%d bytes are kept, %d allowed", s.Bytes(), s.limit)
			}
		}
	})
	if stitched == 0 {
		t.Error("no list was large enough")
	}
	t.Logf("%d lists", stitched)
}

// TestStitchedListsReuse counts the pieces that a change costs.
func TestStitchedListsReuse(t *testing.T) {
	v := configMapView(t)
	f, meta := v.Encoder(encoding.JSON, encoding.Full), wire.ListMeta{Revision: 1}
	original := make([]*cache.Object, 400)
	for n := range original {
		original[n] = configMap(t, v, fmt.Sprintf("ns/c%04d", n), int64(n+1), 20000)
	}
	for round := range 5 {
		s := NewStitcher(1 << 30)
		made := func(objects []*cache.Object) int64 {
			before := s.made.Load()
			if l, err := s.stitch(f, meta, objects); err != nil || l == nil {
				t.Fatalf("stitch: %v, %v", l, err)
			}
			return s.made.Load() - before
		}
		all := made(original)
		if again := made(original); all < 8 || again != 0 {
			t.Fatalf("%d pieces at first, %d of the same again", all, again)
		}
		at := min(1+round*100, len(original)-1)
		updated := slices.Clone(original)
		updated[at] = configMap(t, v, original[at].Key(), 1000, 20000)
		if n := made(updated); n != 1 {
			t.Errorf("an update cost %d of %d pieces", n, all)
		}
		// One after the other at one place: runs must not fall to pieces.
		grown := updated
		for n := range 60 {
			key := fmt.Sprintf("%s~%02d", original[at].Key(), n)
			grown = slices.Insert(slices.Clone(grown), at+1+n, configMap(t, v, key, int64(2000+n), 20000))
			made(grown)
		}
		l, err := s.stitch(f, meta, grown)
		if err != nil {
			t.Fatal(err)
		}
		pieces := len(l.pieces)
		if l, err = NewStitcher(1<<30).stitch(f, meta, grown); err != nil || pieces > len(l.pieces)+1 {
			t.Errorf("%d pieces, %d when cut at once: %v", pieces, len(l.pieces), err)
		}
		other, err := NewStitcher(1<<30).stitch(f, meta, grown)
		if err != nil || !slices.EqualFunc(l.pieces, other.pieces, func(a, b *piece) bool { return bytes.Equal(a.data, b.data) }) {
			t.Errorf("two servers compress one list in two ways: %v", err)
		}
	}
}

// TestStitchedListsTogether checks that concurrent lists build each piece once.
func TestStitchedListsTogether(t *testing.T) {
	v := configMapView(t)
	f, meta := v.Encoder(encoding.JSON, encoding.Full), wire.ListMeta{Revision: 1}
	objects := make([]*cache.Object, 300)
	for n := range objects {
		objects[n] = configMap(t, v, fmt.Sprintf("ns/c%04d", n), int64(n+1), 20000)
	}
	changed := slices.Clone(objects)
	changed[150] = configMap(t, v, changed[150].Key(), 1000, 20000)
	s := NewStitcher(1 << 30)
	results := make([]*stitchedList, 16)
	var all sync.WaitGroup
	for i := range results {
		all.Go(func() {
			list := objects
			if i%8 == 7 {
				list = changed // the flight that it joins makes another piece
			}
			var err error
			if results[i], err = s.stitch(f, meta, list); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	for i, l := range results {
		var out bytes.Buffer
		if _, err := l.WriteTo(&out); err != nil {
			t.Fatal(err)
		}
		want := int64(1)
		if i%8 == 7 {
			want = 1000
		}
		plain := inflate(t, out.Bytes())
		if !bytes.Contains(plain, fmt.Appendf(nil, "c0150 at %d. ", max(want, 151))) || len(plain) != l.size {
			t.Errorf("list %d is not its own", i)
		}
	}
	// Those with the change and those without may have made its piece each for itself.
	if made, pieces := s.made.Load(), int64(len(results[0].pieces)); made < pieces+1 || made > pieces+int64(len(results)) {
		t.Errorf("%d pieces were made, lists have %d", made, pieces)
	}
	s.flights.Range(func(key, _ any) bool {
		t.Errorf("a flight is under way: %v", key)
		return true
	})
}

// TestStitchedListsTooLarge checks that the next list uses the pieces that a list beyond the limit has left.
func TestStitchedListsTooLarge(t *testing.T) {
	v := configMapView(t)
	f, meta := v.Encoder(encoding.JSON, encoding.Full), wire.ListMeta{Revision: 1}
	objects := make([]*cache.Object, 400)
	for n := range objects {
		objects[n] = configMap(t, v, fmt.Sprintf("ns/c%04d", n), int64(n+1), 20000)
	}
	s := NewStitcher(1 << 30)
	list := func(objects []*cache.Object) int64 {
		before := s.made.Load()
		l, err := s.stitch(f, meta, objects)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.WriteTo(io.Discard); err != nil {
			t.Fatal(err)
		}
		return s.made.Load() - before
	}
	all := list(objects)
	whole := s.Bytes()
	s = NewStitcher(whole / 2)
	small := objects[:40]
	list(small)
	for range 3 {
		list(objects)
		if s.Bytes() > s.limit {
			t.Fatalf("%d bytes are kept, %d allowed", s.Bytes(), s.limit)
		}
	}
	if made := list(objects); made == 0 || made > all*9/10 {
		t.Errorf("%d of %d pieces were made again", made, all)
	}
	if made := list(small); made > 1 { // its last piece is shorter than the large list's
		t.Errorf("the large list drove out %d pieces of the small one", made)
	}
}

// TestStitchedListsOfUnreadableObjects checks that a list with an unreadable object fails before its first byte, also if the
// object is beyond the cached pieces.
func TestStitchedListsOfUnreadableObjects(t *testing.T) {
	v := configMapView(t)
	objects := make([]*cache.Object, 40)
	for n := range objects {
		objects[n] = configMap(t, v, fmt.Sprintf("ns/c%04d", n), int64(n+1), 20000)
	}
	unreadable := errors.New("unreadable")
	objects = append(objects, cache.NewObject(cache.ObjectConfig{Key: "ns/d", Revision: 50, Err: unreadable}, v.Resource.Cache.Schema()))
	for _, f := range everyEncoder(v) {
		for _, limit := range []int64{0, 1 << 30} {
			if _, err := NewStitcher(limit).stitch(f, wire.ListMeta{Revision: 50}, objects); !errors.Is(err, unreadable) {
				t.Errorf("limit %d, %v: got error %v, want that of the object", limit, f.MediaType, err)
			}
		}
	}
}

// TestStitchedListsElsewhere reads a stitched list with another gzip than Go's.
func TestStitchedListsElsewhere(t *testing.T) {
	v := configMapView(t)
	f := v.Encoder(encoding.JSON, encoding.Full)
	var objects []*cache.Object
	var items [][]byte
	for n := range 100 {
		objects = append(objects, configMap(t, v, fmt.Sprintf("ns/c%04d", n), int64(n+1), 20000))
		item, err := f.Item(t.Context(), objects[n])
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, item)
	}
	meta := wire.ListMeta{Revision: 1}
	l, err := NewStitcher(1<<30).stitch(f, meta, objects)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := l.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("gzip"); err != nil {
		t.Logf("there is no gzip here: %v", err)
		return
	}
	unzip := exec.CommandContext(t.Context(), "gzip", "-dc")
	unzip.Stdin = &out
	plain, err := unzip.Output()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(plain, wholeList(f, meta, items)) {
		t.Errorf("gzip read %d bytes, not the list", len(plain))
	}
}

// TestCRC checks that joined checksums equal the checksums of the joined bytes.
func TestCRC(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.SliceOf(rapid.Byte()).Draw(t, "a"), rapid.SliceOf(rapid.Byte()).Draw(t, "b")
		b = bytes.Repeat(b, rapid.IntRange(1, 3000).Draw(t, "times"))
		got := crcJoin(crc32.ChecksumIEEE(a), crc32.ChecksumIEEE(b), crcPower(len(b)))
		if want := crc32.ChecksumIEEE(append(slices.Clone(a), b...)); got != want {
			t.Fatalf("%x, want %x", got, want)
		}
	})
}

// wholeList returns a list of items as w writes it.
func wholeList(w wire.Writer, meta wire.ListMeta, items [][]byte) []byte {
	size := 0
	for _, item := range items {
		size += w.ItemSize(item)
	}
	list := w.AppendListHeader(nil, meta, len(items), size)
	for i, item := range items {
		list = append(w.AppendItemHeader(list, i, item), item...)
	}
	return w.AppendListFooter(list, meta, len(items))
}
