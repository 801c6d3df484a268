package relay

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/larder-io/larder/internal/registry/wire"
	"github.com/larder-io/larder/kv"
)

// list is a decoded list.
type list struct {
	revision  int64
	token     string // to continue with; "" after the last page
	remaining int64  // objects after this page, 0 if unknown
	objects   []object
}

// object is one object as a value of the store. The value is a copy.
type object struct {
	key      string // [namespace/]name
	revision int64
	value    []byte
}

// event is one event of a watch. A bookmark has kind 0 and nothing but a revision.
type event struct {
	kind kv.EventKind
	object
}

// codec reads one media type. None of its results shares memory with the input.
type codec interface {
	mediaType() string
	// list decodes a list.
	list(body []byte) (list, error)
	// frames returns a function that returns the raw frames of a watch one after another. A frame has at
	// most limit bytes and is valid until the next call.
	frames(body io.Reader, limit int64) func() ([]byte, error)
	// event decodes a frame. The error of an ERROR event is a statusError.
	event(frame []byte) (event, error)
}

// objects says what objects a codec reads, and writes their values.
type objects struct {
	wire.Kind
	namespaced bool
	writer     wire.Writer
}

func newCodec(config StoreConfig) codec {
	kind := wire.Kind{APIVersion: config.Resource.GroupVersion().String(), Kind: config.Kind}
	if config.Protobuf {
		return &protobufCodec{objects{kind, config.Namespaced, wire.Protobuf(kind)}}
	}
	return &jsonCodec{objects{kind, config.Namespaced, wire.JSON(kind)}}
}

// setMeta sets what l has beside objects.
func (l *list) setMeta(meta metav1.ListMeta) (err error) {
	l.token, l.remaining = meta.Continue, max(ptr.Deref(meta.RemainingItemCount, 0), 0)
	l.revision, err = parseRevision(meta.ResourceVersion)
	return err
}

var errMalformed = errors.New("response of the upstream is malformed")

func malformed(err error) error { return fmt.Errorf("%w: %w", errMalformed, err) }

// typeMismatch is the error of an object that is not of the store's kind.
func typeMismatch(apiVersion, kind string) error {
	return fmt.Errorf("%w: it has a %q of %q", errMalformed, kind, apiVersion)
}

var eventKinds = map[string]kv.EventKind{"ADDED": kv.Create, "MODIFIED": kv.Update, "DELETED": kv.Delete, "BOOKMARK": 0}

// eventKind returns the kind of an event with an object. That of an ERROR event is the error.
func eventKind(name string, object []byte) (kv.EventKind, error) {
	if name == "ERROR" {
		status, err := decodeStatus(object)
		return 0, cmp.Or(err, statusError(status))
	}
	kind, known := eventKinds[name]
	if !known {
		return 0, fmt.Errorf("%w: event type %q", errMalformed, name)
	}
	return kind, nil
}

// decodeStatus decodes a Status in either encoding.
func decodeStatus(body []byte) (status metav1.Status, err error) {
	message, _, kind, ok := wire.Unenvelope(body)
	switch {
	case len(body) > maxStatus:
		return status, errTooLarge
	case !ok:
		err = unmarshal(body, &status)
		kind = status.Kind
	case status.Unmarshal(message) != nil:
		err = errMalformed
	}
	if err == nil && kind != "Status" {
		err = typeMismatch(status.APIVersion, kind)
	}
	return status, err
}

// objectMeta is the part of an object's metadata that the store needs.
type objectMeta struct {
	Name            string `json:"name"`
	Namespace       string `json:"namespace"`
	ResourceVersion string `json:"resourceVersion"`
}

// object returns the object with this metadata, without its value. It is that of an event of the kind, or of a list.
func (m objectMeta) object(kind kv.EventKind, namespaced bool) (object, error) {
	revision, err := parseRevision(m.ResourceVersion)
	if err != nil || kind == 0 {
		return object{revision: revision}, err
	}
	if m.Name == "" || (m.Namespace != "") != namespaced || strings.Contains(m.Name, "/") || strings.Contains(m.Namespace, "/") {
		return object{}, fmt.Errorf("%w: an object has the namespace %q and the name %q", errMalformed, m.Namespace, m.Name)
	}
	key := m.Name
	if namespaced {
		key = m.Namespace + "/" + m.Name
	}
	return object{key: key, revision: revision}, nil
}

func parseRevision(resourceVersion string) (int64, error) {
	revision, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil || revision <= 0 {
		return 0, fmt.Errorf("%w: resourceVersion %q is not a positive number", errMalformed, resourceVersion)
	}
	return revision, nil
}
