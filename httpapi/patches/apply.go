package patches

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/warning"
	kjson "sigs.k8s.io/json"
)

// Target is the kind of the objects that patches apply to. It is immutable.
type Target struct {
	scope *handlers.RequestScope
	empty func() runtime.Object // returns an object of the hub version

	encoder         runtime.Encoder // to JSON of the kind's version
	lenient, strict decoder

	meta    strategicpatch.LookupPatchMeta // the merge keys of the Go type
	metaErr error                          // why the kind has no strategic merge patches
	narrows bool                           // a merge patch may apply to a part of the object
}

// decoder decodes JSON: raw to the version that was sent, whole to the hub version with defaults.
type decoder struct{ raw, whole runtime.Decoder }

// NewTarget returns the target for the kind of scope. Empty returns a new object of the hub version.
func NewTarget(scope *handlers.RequestScope, empty func() runtime.Object) Target {
	t := Target{scope: scope, empty: empty}
	info, _ := runtime.SerializerInfoForMediaType(scope.Serializer.SupportedMediaTypes(), runtime.ContentTypeJSON)
	t.encoder = scope.Serializer.EncoderForVersion(info.Serializer, scope.Kind.GroupVersion())
	t.lenient = decoder{info.Serializer, scope.Serializer.DecoderToVersion(info.Serializer, scope.HubGroupVersion)}
	t.strict = decoder{info.StrictSerializer, scope.Serializer.DecoderToVersion(info.StrictSerializer, scope.HubGroupVersion)}
	if sample, err := scope.Creater.New(scope.Kind); err == nil {
		t.narrows = Narrows(sample)
	}
	var reference runtime.Object
	if reference, t.metaErr = scope.UnsafeConvertor.ConvertToVersion(empty(), scope.Kind.GroupVersion()); t.metaErr == nil {
		var known strategicpatch.PatchMetaFromStruct
		known, t.metaErr = strategicpatch.NewPatchMetaFromStruct(reference)
		t.meta = known
	}
	return t
}

// Patch is a JSON patch, a JSON merge patch or a strategic merge patch. One goroutine may apply it
// several times: after a conflict the stored object is another.
type Patch struct {
	Target *Target
	Kind   types.PatchType
	Data   []byte
	// Directive tells how to handle unknown and duplicate fields: metav1.FieldValidationIgnore, Warn
	// or Strict.
	Directive string

	decoded    bool           // the fields below are set
	parsed     map[string]any // Data, if it is a JSON object
	strictErrs []error        // duplicate fields in Data
	decodeErr  error
}

// Apply applies the patch to stored, an object of the hub version, and returns the result (apiserver
// pkg/endpoints/handlers/patch.go). The result shares no memory with stored. Warnings go to the
// recorder of ctx.
func (p *Patch) Apply(ctx context.Context, stored runtime.Object) (runtime.Object, error) {
	switch p.Kind {
	case types.JSONPatchType:
		return p.applyText(ctx, stored, p.editJSON)
	case types.MergePatchType:
		if merged := p.mergePart(stored); merged != nil {
			return merged, nil
		}
		return p.applyText(ctx, stored, p.mergeJSON)
	case types.StrategicMergePatchType:
		return p.applyStrategic(ctx, stored)
	}
	return nil, fmt.Errorf("patches: %q is no type of a patch", p.Kind) // the endpoint refuses such requests
}

// isStrict reports whether the directive asks for a check of unknown and duplicate fields.
func (p *Patch) isStrict() bool {
	return p.Directive == metav1.FieldValidationWarn || p.Directive == metav1.FieldValidationStrict
}

func (p *Patch) decoder() decoder {
	if p.isStrict() {
		return p.Target.strict
	}
	return p.Target.lenient
}

// applyText applies a patch to the JSON of an object. Edit returns the patched JSON and the duplicate
// fields of the patch.
func (p *Patch) applyText(ctx context.Context, stored runtime.Object, edit func(before []byte) (after []byte, found []error, err error)) (runtime.Object, error) {
	before, err := runtime.Encode(p.Target.encoder, stored)
	if err != nil {
		return nil, err
	}
	after, found, err := edit(before)
	if err != nil {
		return nil, err
	}
	obj := p.Target.empty()
	err = runtime.DecodeInto(p.decoder().whole, after, obj)
	return obj, p.found(ctx, found, err, string(after))
}

// found handles the duplicate and unknown fields of the patch and, in err, of the patched object: it
// warns of them or returns an error with text. Other errors in err are returned alone.
func (p *Patch) found(ctx context.Context, inPatch []error, err error, text string) error {
	strict, isStrict := runtime.AsStrictDecodingError(err)
	switch {
	case err != nil && !isStrict: // decoding stopped early, so inPatch may be incomplete
		return invalidPatch(text, err)
	case isStrict:
		inPatch = append(slices.Clip(inPatch), strict.Errors()...)
	case len(inPatch) == 0:
		return nil
	}
	if p.Directive == metav1.FieldValidationWarn {
		Warn(ctx, inPatch)
		return nil
	}
	return invalidPatch(text, runtime.NewStrictDecodingError(inPatch))
}

func invalidPatch(text string, cause error) error {
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), text, cause.Error())})
}

// unprocessable returns the error for a patch that does not apply to its object.
func unprocessable(cause error) error {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", cause.Error(), 0, false)
}

// jsonPatchOp is an operation of a JSON patch, for strict decoding. Its name is part of error messages,
// so it is the name of upstream's type.
type jsonPatchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

// editJSON applies a JSON patch.
func (p *Patch) editJSON(before []byte) (after []byte, found []error, err error) {
	if p.isStrict() {
		var operations []jsonPatchOp
		if found, err = kjson.UnmarshalStrict(p.Data, &operations); err != nil {
			text := strings.ReplaceAll(err.Error(), "[]patches.", "[]handlers.") // the package of upstream's type
			return nil, nil, apierrors.NewBadRequest("error decoding patch: " + text)
		}
		for i, err := range found {
			found[i] = fmt.Errorf("json patch %w", err)
		}
	}
	patch, err := jsonpatch.DecodePatch(p.Data)
	switch {
	case err != nil:
		return nil, nil, apierrors.NewBadRequest(err.Error())
	case len(patch) > maxOperations:
		return nil, nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", maxOperations, len(patch)))
	}
	if after, err = patch.Apply(before); err != nil {
		return nil, nil, unprocessable(err)
	}
	return after, found, nil
}

// mergeJSON applies a JSON merge patch.
func (p *Patch) mergeJSON(before []byte) (after []byte, found []error, err error) {
	if p.isStrict() {
		if p.decode(); p.decodeErr != nil {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", p.decodeErr))
		}
	}
	after, err = jsonpatch.MergePatch(before, p.Data)
	if err == jsonpatch.ErrBadJSONPatch { //nolint:errorlint // the library does not wrap it
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	return after, p.strictErrs, err
}

// decode decodes a patch that is a JSON object.
func (p *Patch) decode() {
	if p.decoded {
		return
	}
	p.decoded, p.parsed = true, make(map[string]any)
	if p.isStrict() {
		p.strictErrs, p.decodeErr = kjson.UnmarshalStrict(p.Data, &p.parsed)
	} else {
		p.decodeErr = kjson.UnmarshalCaseSensitivePreserveInts(p.Data, &p.parsed)
	}
}

// applyStrategic applies a strategic merge patch: it converts the object to a map, merges the patch into
// the map by the merge keys of the Go type, and converts the map back. Where it can, it converts only
// the part of the object that the patch names.
func (p *Patch) applyStrategic(ctx context.Context, stored runtime.Object) (runtime.Object, error) {
	t, scope := p.Target, p.Target.scope
	if t.metaErr != nil {
		return nil, t.metaErr
	}
	versioned, err := scope.UnsafeConvertor.ConvertToVersion(stored, scope.Kind.GroupVersion())
	if err != nil {
		return nil, err
	}
	obj, err := scope.Creater.New(scope.Kind)
	if err != nil {
		return nil, err
	}
	if p.decode(); p.decodeErr != nil {
		if _, err := runtime.DefaultUnstructuredConverter.ToUnstructured(versioned); err != nil {
			return nil, err
		}
		return nil, apierrors.NewBadRequest(p.decodeErr.Error())
	}
	narrowed := p.mayNarrow(versioned)
	part := versioned
	if narrowed {
		part = narrowedCopy(versioned, p.parsed)
	}
	original, err := runtime.DefaultUnstructuredConverter.ToUnstructured(part)
	if err != nil {
		return nil, err
	}
	patch := runtime.DeepCopyJSON(p.parsed) // the merge removes directives from it
	patched, err := strategicpatch.StrategicMergeMapPatchUsingLookupPatchMeta(original, patch, t.meta)
	if err != nil {
		return nil, strategicError(err)
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(patched, obj, p.isStrict())
	if err != nil || len(p.strictErrs) > 0 {
		if err := p.found(ctx, p.strictErrs, err, fmt.Sprintf("%+v", patch)); err != nil {
			return nil, err
		}
	}
	if narrowed {
		restore(reflect.ValueOf(obj).Elem(), reflect.ValueOf(versioned.DeepCopyObject()).Elem(), p.parsed)
	}
	scope.Defaulter.Default(obj)
	return scope.UnsafeConvertor.ConvertToVersion(obj, scope.HubGroupVersion)
}

// strategicError returns the error for a strategic merge patch that does not apply.
func strategicError(err error) error {
	switch err { //nolint:errorlint // the library does not wrap them
	case mergepatch.ErrBadJSONDoc, mergepatch.ErrBadPatchFormatForPrimitiveList, mergepatch.ErrBadPatchFormatForRetainKeys,
		mergepatch.ErrBadPatchFormatForSetElementOrderList, mergepatch.ErrUnsupportedStrategicMergePatchFormat:
		return apierrors.NewBadRequest(err.Error())
	case mergepatch.ErrNoListOfLists, mergepatch.ErrPatchContentNotMatchRetainKeys:
		return unprocessable(err)
	}
	return err
}

// Warn warns the client of unknown and duplicate fields. Errors of YAML hold several texts, one a line.
func Warn(ctx context.Context, found []error) {
	const head, longHead = "yaml: unmarshal errors:\n", "error converting YAML to JSON: yaml: unmarshal errors:\n"
	for _, err := range found {
		text, several := strings.CutPrefix(err.Error(), head)
		if !several {
			text, several = strings.CutPrefix(text, longHead)
		}
		if !several {
			warning.AddWarning(ctx, "", text)
			continue
		}
		for line := range strings.SplitSeq(text, "\n") {
			warning.AddWarning(ctx, "", strings.TrimSpace(line))
		}
	}
}

// IgnoresManagedFields reports whether the patch is a merge patch that does not name managedFields.
func (p *Patch) IgnoresManagedFields() bool {
	return p.Kind != types.JSONPatchType && !namesManagedFields(p.Data)
}

// namesManagedFields reports whether JSON may contain managedFields, perhaps escaped.
func namesManagedFields(data []byte) bool {
	return bytes.Contains(bytes.ToLower(data), []byte("managedfields")) || bytes.Contains(data, []byte(`\u`))
}
