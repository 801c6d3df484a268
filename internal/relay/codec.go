package relay

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	// list decodes a list. With a limit, it fails if the list has more objects.
	list(body []byte, limit int64) (list, error)
	// frames returns a function that returns the raw frames of a watch one after another. A frame has at
	// most limit bytes and is valid until the next call.
	frames(body io.Reader, limit int64) func() ([]byte, error)
	// event decodes a frame. The error of an ERROR event is a statusError.
	event(frame []byte) (event, error)
	status(body []byte) (metav1.Status, error)
}

func newCodec(config StoreConfig) codec {
	apiVersion := config.Resource.GroupVersion().String()
	kind := wire.Kind{APIVersion: apiVersion, Kind: config.Kind}
	if config.Protobuf {
		return &protobufCodec{apiVersion: apiVersion, kind: config.Kind, namespaced: config.Namespaced, writer: wire.Protobuf(kind)}
	}
	return &jsonCodec{apiVersion: apiVersion, kind: config.Kind, namespaced: config.Namespaced, writer: wire.JSON(kind)}
}

// setMeta sets what l has beside objects.
func (l *list) setMeta(meta metav1.ListMeta) (err error) {
	l.token, l.remaining = meta.Continue, max(ptr.Deref(meta.RemainingItemCount, 0), 0)
	l.revision, err = parseRevision(meta.ResourceVersion)
	return err
}

// add appends an object that was decoded with err. With a limit, l may have no more objects.
func (l *list) add(o object, err error, limit int64) error {
	if l.objects = append(l.objects, o); err == nil && limit > 0 && int64(len(l.objects)) > limit {
		err = fmt.Errorf("%w: a page has more than %d objects", errMalformed, limit)
	}
	return err
}

var errMalformed = errors.New("upstream's answer is malformed")

func malformed(err error) error { return fmt.Errorf("%w: %w", errMalformed, err) }

// typeMismatch is the error of an object that is not of the store's kind.
func typeMismatch(apiVersion, kind string) error {
	return fmt.Errorf("%w: it has a %q of %q", errMalformed, kind, apiVersion)
}

var eventKinds = map[string]kv.EventKind{"ADDED": kv.Create, "MODIFIED": kv.Update, "DELETED": kv.Delete, "BOOKMARK": 0}

// eventKind returns the kind of an event that is no error.
func eventKind(name string) (kv.EventKind, error) {
	kind, known := eventKinds[name]
	if !known {
		return 0, fmt.Errorf("%w: event type %q", errMalformed, name)
	}
	return kind, nil
}

// objectMeta is the part of an object's metadata that the store needs.
type objectMeta struct {
	Name            string `json:"name"`
	Namespace       string `json:"namespace"`
	ResourceVersion string `json:"resourceVersion"`
}

// object returns the object with this metadata, without its value.
func (m objectMeta) object(namespaced bool) (object, error) {
	if m.Name == "" || (m.Namespace != "") != namespaced || strings.Contains(m.Name, "/") || strings.Contains(m.Namespace, "/") {
		return object{}, fmt.Errorf("%w: an object has the namespace %q and the name %q", errMalformed, m.Namespace, m.Name)
	}
	revision, err := parseRevision(m.ResourceVersion)
	if err != nil {
		return object{}, err
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
		return 0, fmt.Errorf("resourceVersion %q is not a positive number: this resource cannot be relayed", resourceVersion)
	}
	return revision, nil
}

// errorEvent returns the error of an ERROR event with a Status.
func errorEvent(status metav1.Status, err error) error {
	if err != nil {
		return err
	}
	if status.Code == 0 {
		return apierrors.NewInternalError(errors.New(status.Message))
	}
	return statusError(status)
}
