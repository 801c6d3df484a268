package encoding_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/encoding"
)

// conversions is a codec that receives the outcome of each conversion, and waits for it.
type conversions chan func() error

func (c conversions) Decode(data []byte, _ *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if err := (<-c)(); err != nil {
		return nil, nil, err
	}
	err := runtime.DecodeInto(unstructured.UnstructuredJSONScheme, data, into)
	into.GetObjectKind().SetGroupVersionKind(shelfV2)
	return into, nil, err
}

func (conversions) Encode(runtime.Object, io.Writer) error { return errors.ErrUnsupported }

func (conversions) Identifier() runtime.Identifier { return "conversions" }

var shelfV2 = schema.GroupVersionKind{Group: "example.com", Version: "v2", Kind: "Shelf"}

// converted returns a version that a webhook converts, an object to be converted, and the conversions.
func converted(t *testing.T) (*encoding.Version, *cache.Object, conversions) {
	calls := make(conversions)
	var custom *encoding.Custom
	custom = encoding.NewCustom(encoding.CustomConfig{
		GroupResource: schema.GroupResource{Group: "example.com", Resource: "shelves"}, Versions: 2, Webhook: true,
		Schema: cache.NewResourceSchema("shelves", nil),
		Make: sync.OnceValue(func() error {
			_, err := custom.Add(shelfV2, calls, func(runtime.Object) (labels.Set, fields.Set, error) { return nil, nil, nil })
			return err
		}),
	})
	if err := custom.Declare(shelfV2, "ShelfList"); err != nil {
		t.Fatal(err)
	}
	v, err := custom.Version("v2").NewVersion(shelfV2, "ShelfList")
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"a"}}`)
	return v, cache.NewObject(cache.ObjectConfig{Key: "a", Revision: 1, Body: body}, custom.Schema), calls
}

// TestReadersShareAConversion checks that readers that arrive during a conversion share its result, even an error or
// a panic. A reader leaves when its context ends, even the first, without affecting the others.
func TestReadersShareAConversion(t *testing.T) {
	broken := errors.New("the webhook is broken")
	for name, c := range map[string]struct {
		outcome func() error
		failed  func(error) bool
	}{
		"error":   {func() error { return broken }, func(err error) bool { return errors.Is(err, broken) }},
		"panic":   {func() error { panic("conversion") }, func(err error) bool { return err != nil }},
		"success": {func() error { return nil }, func(err error) bool { return err == nil }},
	} {
		for _, projection := range []encoding.Projection{encoding.Full, encoding.Partial} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					v, o, calls := converted(t)
					e := v.Encoder(encoding.JSON, projection)
					await := func(ctx context.Context) chan error {
						ended := make(chan error, 1)
						go func() {
							_, err := e.Item(ctx, o)
							ended <- err
						}()
						synctest.Wait()
						return ended
					}
					ctx, leave := context.WithCancel(t.Context())
					first := await(ctx)
					leave()
					if err := <-first; !storage.IsRequestTimeout(err) {
						t.Errorf("the reader that left got %v, want a timeout", err)
					}
					var others []chan error
					for range 5 {
						others = append(others, await(t.Context()))
					}
					calls <- c.outcome
					for _, other := range others {
						if err := <-other; !c.failed(err) {
							t.Errorf("a reader that waited got %v", err)
						}
					}
					if name == "success" {
						if _, err := e.Item(t.Context(), o); err != nil { // a new conversion would block
							t.Errorf("a reader after the conversion: %v", err)
						}
						return
					}
					next := await(t.Context())
					calls <- func() error { return nil }
					if err := <-next; err != nil {
						t.Errorf("the next reader: %v", err)
					}
				})
			})
		}
	}
}

// TestConversionsAreLimited checks that the number of conversions without readers is limited.
func TestConversionsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, o, calls := converted(t)
		e := v.Encoder(encoding.JSON, encoding.Full)
		left, leave := context.WithCancel(t.Context())
		leave()
		another := func(i int) *cache.Object {
			return cache.NewObject(cache.ObjectConfig{Key: fmt.Sprint(i), Revision: 1, Body: o.Body()}, cache.NewResourceSchema("shelves", nil))
		}
		const most = 1000
		for i := range most {
			if _, err := e.Item(left, another(i)); !storage.IsRequestTimeout(err) {
				t.Fatalf("reader %d got %v, want a timeout", i, err)
			}
		}
		synctest.Wait()
		if _, err := e.Item(t.Context(), another(most)); !apierrors.IsTooManyRequests(err) {
			t.Errorf("one reader more than the limit: %v", err)
		}
		for range most {
			calls <- func() error { return errors.ErrUnsupported }
		}
		synctest.Wait()
		go func() { calls <- func() error { return nil } }()
		if _, err := e.Item(t.Context(), another(most)); err != nil {
			t.Errorf("a reader after the conversions: %v", err)
		}
	})
}
