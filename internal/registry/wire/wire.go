package wire

import (
	"errors"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/internal/invariants"
)

var (
	// ErrMalformed says that bytes are not an encoded object.
	ErrMalformed = errors.New("wire: malformed object")
	// ErrNoMetadata says that an object has no top-level metadata, or JSON
	// metadata no resourceVersion to replace.
	ErrNoMetadata = errors.New("wire: no metadata")
)

// Kind names the kind of the objects that a Writer writes.
type Kind struct {
	APIVersion string
	Kind       string
	ListKind   string
	// Partial says that the kind is PartialObjectMetadata: JSON items have kind and apiVersion themselves, and an empty
	// JSON list has null for its items (apiserver pkg/endpoints/handlers/response.go).
	Partial bool
	// ItemsFirst says that the protobuf list has items in field 1 and metadata in field 2, as only
	// meta.k8s.io/v1beta1 does.
	ItemsFirst bool
}

// ListMeta is the metadata of a list.
type ListMeta struct {
	Revision  int64
	Continue  string
	Remaining *int64
	Shard     string // the shard selector of the list, "" if it has none; lists of unknown types omit it
}

// upstreams returns m as upstream's type.
func (m *ListMeta) upstreams() *metav1.ListMeta {
	meta := &metav1.ListMeta{ResourceVersion: string(appendRevisionString(nil, m.Revision)), Continue: m.Continue, RemainingItemCount: m.Remaining}
	if m.Shard != "" {
		meta.ShardInfo = &metav1.ShardInfo{Selector: m.Shard}
	}
	return meta
}

// Writer writes one kind in one media type. Items, counts and sums that belong
// to one response must agree between its methods.
type Writer interface {
	// ObjectSize returns the length of AppendObject's output.
	ObjectSize(item []byte) int
	// AppendObject appends item as a whole response body.
	AppendObject(dst, item []byte) []byte

	// ItemSize returns the bytes that one item adds to a list, without its separator. The sum over
	// all items is the size parameter of ListSize and AppendListHeader.
	ItemSize(item []byte) int
	// ListSize returns the length of a whole list body.
	ListSize(meta ListMeta, items, size int) int
	// AppendListHeader appends the bytes before the first item header.
	AppendListHeader(dst []byte, meta ListMeta, items, size int) []byte
	// AppendItemHeader appends the bytes before item i.
	AppendItemHeader(dst []byte, i int, item []byte) []byte
	// AppendListFooter appends the bytes after the last item.
	AppendListFooter(dst []byte, meta ListMeta, items int) []byte

	// AppendFrame appends item as one event of a watch stream. If dst is nil, the result has no spare capacity beyond
	// what the allocator adds.
	AppendFrame(dst []byte, event string, item []byte) []byte

	// AppendRevision appends item with its metadata.resourceVersion replaced.
	AppendRevision(dst, item []byte, revision int64) ([]byte, error)
}

// listSize returns the length of a list of w without separators between its items.
func listSize(w Writer, meta ListMeta, items, size int) int {
	return len(w.AppendListHeader(nil, meta, items, size)) + size + len(w.AppendListFooter(nil, meta, items))
}

// head holds bytes that a Writer writes around items. All responses share them, and nothing writes to them
// after the Writer is made; builds tagged invariants check that at each use.
type head struct {
	seal  invariants.Seal // of bytes
	bytes []byte
}

func newHead(b []byte) head { return head{invariants.SealOf(b), b[:len(b):len(b)]} }

// shared returns the bytes, which must not be changed.
func (h *head) shared() []byte {
	h.seal.Check(h.bytes, "wire: the head of an object or a list")
	return h.bytes
}

func (h *head) len() int { return len(h.bytes) }

// appendRevisionString appends a revision as upstream writes it: zero is the empty string.
func appendRevisionString(dst []byte, revision int64) []byte {
	if revision == 0 {
		return dst
	}
	return strconv.AppendInt(dst, revision, 10)
}

func revisionLen(revision int64) int {
	var buf [20]byte
	return len(appendRevisionString(buf[:0], revision))
}
