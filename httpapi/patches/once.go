package patches

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
)

// maxMembers is how many members an object of an applied configuration may have: they are
// compared with each other.
const maxMembers = 256

// ReadOnce has upstream's handler read an applied configuration once, if it is JSON in which no
// member comes twice. The handler reads it as YAML, and then again, strictly, to find members
// that do; for large objects that is a quarter of the work. The query of the request that
// ReadOnce returns asks for no second reading; the handler's admission is to be made by
// [AskedFor], so that it sees what the client asked for.
func ReadOnce(req *http.Request) *http.Request {
	if req.Method != http.MethodPatch || req.Body == nil || typeOf(req) != types.ApplyYAMLPatchType {
		return req
	}
	query, err := url.ParseQuery(req.URL.RawQuery)
	if err != nil {
		return req
	}
	asked := query["fieldValidation"]
	if len(asked) > 1 || len(asked) == 1 && asked[0] != "" && asked[0] != metav1.FieldValidationWarn && asked[0] != metav1.FieldValidationStrict {
		return req
	}
	data, err := io.ReadAll(req.Body)
	body := io.Reader(bytes.NewReader(data))
	if err != nil {
		body = io.MultiReader(body, failing{err})
	}
	ctx := req.Context()
	clean := err == nil && isClean(data)
	if clean {
		ctx = context.WithValue(ctx, askedKey{}, query.Get("fieldValidation"))
	}
	out := req.WithContext(ctx)
	out.Body = struct {
		io.Reader
		io.Closer
	}{body, req.Body}
	if clean {
		query.Set("fieldValidation", metav1.FieldValidationIgnore)
		own := *req.URL
		own.RawQuery = query.Encode()
		out.URL = &own
	}
	return out
}

type failing struct{ err error }

// Read implements io.Reader.
func (f failing) Read([]byte) (int, error) { return 0, f.err }

// isClean reports whether data is JSON in which YAML finds no member twice. It may report false
// for such data as well: keys are to be plain, so that both read the same in them.
func isClean(data []byte) bool {
	if !json.Valid(data) {
		return false
	}
	k := keys{data: data}
	for k.at < len(data) {
		if !k.step() {
			return false
		}
	}
	return true
}

// keys goes through valid JSON and keeps the keys of the objects that it is in.
type keys struct {
	data []byte
	at   int

	open  []int    // for each object and list around at, how many keys are those of others; -1 for a list
	known [][]byte // keys of the objects around at
	value bool     // in an object, the next string is a value
}

// step goes on by one token. It reports whether the key there, if there is one, is plain and new.
func (k *keys) step() bool {
	c := k.data[k.at]
	k.at++
	switch c {
	case '{':
		k.open, k.value = append(k.open, len(k.known)), false
	case '[':
		k.open = append(k.open, -1)
	case '}':
		k.known = k.known[:k.open[len(k.open)-1]]
		k.open = k.open[:len(k.open)-1]
	case ']':
		k.open = k.open[:len(k.open)-1]
	case ',':
		k.value = false
	case ':':
		k.value = true
	case '"':
		text := k.text()
		if n := len(k.open); n > 0 && k.open[n-1] >= 0 && !k.value {
			return k.add(text, k.open[n-1])
		}
	}
	return true
}

// text goes to the end of a string and returns it as it is written.
func (k *keys) text() []byte {
	from := k.at
	for ; k.data[k.at] != '"'; k.at++ {
		if k.data[k.at] == '\\' {
			k.at++
		}
	}
	k.at++
	return k.data[from : k.at-1]
}

// add adds a key of the object whose keys begin at first.
func (k *keys) add(key []byte, first int) bool {
	own := k.known[first:]
	if len(own) >= maxMembers {
		return false
	}
	for _, c := range key {
		if c <= ' ' || c >= 0x7f || c == '\\' || c == '<' {
			return false
		}
	}
	if slices.ContainsFunc(own, func(other []byte) bool { return bytes.Equal(other, key) }) {
		return false
	}
	k.known = append(k.known, key)
	return true
}

// askedKey is that of what a client asked for by fieldValidation, in the context of a request
// that [ReadOnce] has changed.
type askedKey struct{}

// AskedFor returns admission that sees the options of a request as the client asked for them.
func AskedFor(inner admission.Interface) admission.Interface {
	if inner == nil {
		return nil
	}
	return &asked{inner}
}

type asked struct{ admission.Interface }

var (
	_ admission.MutationInterface   = &asked{}
	_ admission.ValidationInterface = &asked{}
)

// Admit implements admission.MutationInterface.
func (a *asked) Admit(ctx context.Context, attributes admission.Attributes, o admission.ObjectInterfaces) error {
	restoreDirective(ctx, attributes)
	if inner, ok := a.Interface.(admission.MutationInterface); ok {
		return inner.Admit(ctx, attributes, o)
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (a *asked) Validate(ctx context.Context, attributes admission.Attributes, o admission.ObjectInterfaces) error {
	restoreDirective(ctx, attributes)
	if inner, ok := a.Interface.(admission.ValidationInterface); ok {
		return inner.Validate(ctx, attributes, o)
	}
	return nil
}

// restoreDirective gives the options of attributes, which are the request's own, the directive that the
// client asked for.
func restoreDirective(ctx context.Context, attributes admission.Attributes) {
	directive, ok := ctx.Value(askedKey{}).(string)
	if !ok {
		return
	}
	switch options := attributes.GetOperationOptions().(type) {
	case *metav1.UpdateOptions:
		options.FieldValidation = directive
	case *metav1.CreateOptions:
		options.FieldValidation = directive
	}
}
