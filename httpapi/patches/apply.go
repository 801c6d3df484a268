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
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// Target is the kind of the objects that patches apply to. It is immutable.
type Target struct {
	scope *handlers.RequestScope
	empty func() runtime.Object // returns an object of the internal version

	encoder         runtime.Encoder // to JSON of the kind's version
	lenient, strict decoder

	meta    strategicpatch.LookupPatchMeta // the merge keys of the Go type
	metaErr error                          // why the kind has no strategic merge patches
	narrows bool                           // a merge patch may apply to a part of the object
}

// decoder decodes JSON: raw to the version that was sent, whole to the internal version with defaults.
type decoder struct{ raw, whole runtime.Decoder }

// NewTarget returns the target for the kind of scope. Empty returns a new object of the internal version, which for
// custom resources is the version of scope.
func NewTarget(scope *handlers.RequestScope, empty func() runtime.Object) Target {
	t := Target{scope: scope, empty: empty}
	info, _ := runtime.SerializerInfoForMediaType(scope.Serializer.SupportedMediaTypes(), runtime.ContentTypeJSON)
	t.encoder = scope.Serializer.EncoderForVersion(info.Serializer, scope.Kind.GroupVersion())
	t.lenient = decoder{info.Serializer, scope.Serializer.DecoderToVersion(info.Serializer, scope.HubGroupVersion)}
	t.strict = decoder{info.StrictSerializer, scope.Serializer.DecoderToVersion(info.StrictSerializer, scope.HubGroupVersion)}
	if sample, err := scope.Creater.New(scope.Kind); err == nil {
		t.narrows = !holdsDocument(reflect.TypeOf(sample), make(map[reflect.Type]bool))
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

// Apply applies the patch to stored, an object of the internal version, and returns the result (apiserver
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
	return nil, fmt.Errorf("patches: %q is not a patch type", p.Kind) // the endpoint rejects such requests
}

// IsStrict reports whether a directive of fieldValidation asks for a check of unknown and duplicate fields.
func IsStrict(directive string) bool {
	return directive == metav1.FieldValidationWarn || directive == metav1.FieldValidationStrict
}

func (p *Patch) decoder() decoder {
	if IsStrict(p.Directive) {
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

// found handles duplicate and unknown fields: inPatch has those of the patch, err those of the
// patched object. It warns of them or returns an error with text. Other errors in err are returned
// alone.
func (p *Patch) found(ctx context.Context, inPatch []error, err error, text string) error {
	if !IsStrict(p.Directive) {
		inPatch = nil
	}
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
	if IsStrict(p.Directive) {
		var operations []jsonPatchOp
		if found, err = kjson.UnmarshalStrict(p.Data, &operations); err != nil {
			text := strings.ReplaceAll(err.Error(), "patches.jsonPatchOp", "handlers.jsonPatchOp") // the package of upstream's type
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
	if IsStrict(p.Directive) {
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
	p.strictErrs, p.decodeErr = kjson.UnmarshalStrict(p.Data, &p.parsed)
}

// applyStrategic applies a strategic merge patch. It converts the object to a map and merges the patch
// by the merge keys of the Go type. Then it converts the map back. Where it can, it converts only the
// part of the object that the patch names.
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
		return nil, apierrors.NewBadRequest(p.decodeErr.Error())
	}
	narrowed := p.mayNarrow()
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
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(patched, obj, IsStrict(p.Directive))
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
	return p.Kind != types.JSONPatchType && !bytes.Contains(p.Data, []byte(`\u`)) && !bytes.Contains(bytes.ToLower(p.Data), []byte("managedfields"))
}

const (
	// maxNarrowed limits the size of a patch that is applied to a part of its object. Larger patches
	// touch most of the object anyway.
	maxNarrowed = 256 << 10

	// minMerged is the stored size from which a JSON merge patch is applied to a part of its object.
	// For smaller objects that saves nothing.
	minMerged = 1 << 10
)

// Most merge patches name few fields of their object: a patch of a pod's status does not name its spec.
// So a merge patch applies to a copy of the object with only the named fields, at the top and in the
// structs below. The other fields are restored before the result gets its defaults. If a directive such
// as "$patch" is among the fields, all fields stay: the directive may apply to any of them.

// holdsDocument reports whether values of t may hold arbitrary JSON, as a ControllerRevision does, unless a type in
// seen does. Merge patches of such a type apply to the whole object, because upstream converts that JSON to a map and
// back. This sorts its keys and rewrites its numbers.
func holdsDocument(t reflect.Type, seen map[reflect.Type]bool) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return holdsDocument(t.Elem(), seen)
	case reflect.Interface: // an unstructured object
		return true
	case reflect.Struct:
	default:
		return false
	}
	if t == reflect.TypeFor[runtime.RawExtension]() {
		return true
	}
	if seen[t] {
		return false
	}
	seen[t] = true
	for i := range t.NumField() {
		if holdsDocument(t.Field(i).Type, seen) {
			return true
		}
	}
	return false
}

// mayNarrow reports whether the patch, which is decoded, may apply to a part of its object.
func (p *Patch) mayNarrow() bool {
	return p.Target.narrows && p.parsed != nil && len(p.Data) <= maxNarrowed
}

// mergePart applies a JSON merge patch to a part of stored. It returns nil if the patch must apply to the
// whole object. That includes all failures, because upstream's errors contain the whole result.
func (p *Patch) mergePart(stored runtime.Object) runtime.Object {
	t, scope := p.Target, p.Target.scope
	version := scope.Kind.GroupVersion()
	whole, err := scope.UnsafeConvertor.ConvertToVersion(stored, version)
	if err != nil {
		return nil
	}
	if sized, ok := whole.(interface{ Size() int }); !ok || sized.Size() < minMerged {
		return nil
	}
	if p.decode(); p.decodeErr != nil || len(p.strictErrs) > 0 || !p.mayNarrow() {
		return nil
	}
	before, err := runtime.Encode(t.encoder, narrowedCopy(whole, p.parsed))
	if err != nil {
		return nil
	}
	after, err := jsonpatch.MergePatch(before, p.Data)
	if err != nil {
		return nil
	}
	patched, kind, err := p.decoder().raw.Decode(after, nil, nil)
	if err != nil || *kind != scope.Kind {
		return nil
	}
	restore(reflect.ValueOf(patched).Elem(), reflect.ValueOf(whole.DeepCopyObject()).Elem(), p.parsed)
	scope.Defaulter.Default(patched)
	merged, err := scope.UnsafeConvertor.ConvertToVersion(patched, scope.HubGroupVersion)
	if err != nil {
		return nil
	}
	return merged
}

// narrowedCopy returns a shallow copy of obj, a pointer to a struct, with only the fields that patch
// names.
func narrowedCopy(obj runtime.Object, patch map[string]any) runtime.Object {
	narrowed := reflect.New(reflect.TypeOf(obj).Elem())
	narrowed.Elem().Set(reflect.ValueOf(obj).Elem())
	narrow(narrowed.Elem(), patch)
	return narrowed.Interface().(runtime.Object)
}

// narrow clears the fields of a struct that patch does not name.
func narrow(v reflect.Value, patch map[string]any) {
	each(v.Type(), patch, func(i int, touched bool, below map[string]any) {
		switch {
		case !touched:
			v.Field(i).SetZero()
		case below != nil:
			narrow(v.Field(i), below)
		}
	})
}

// restore sets the fields of a struct that patch does not name to their values in whole.
func restore(v, whole reflect.Value, patch map[string]any) {
	each(v.Type(), patch, func(i int, touched bool, below map[string]any) {
		switch {
		case !touched:
			v.Field(i).Set(whole.Field(i))
		case below != nil:
			restore(v.Field(i), whole.Field(i), below)
		}
	})
}

// each calls fn for every field of a struct that has a name in JSON. touched says whether patch names
// the field; below is the part of patch for a field that is a struct itself.
func each(t reflect.Type, patch map[string]any, fn func(i int, touched bool, below map[string]any)) {
	for key := range patch {
		if strings.HasPrefix(key, "$") {
			return
		}
	}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		to, touched := patch[name]
		below, _ := to.(map[string]any)
		if below != nil && (t.Field(i).Type.Kind() != reflect.Struct || value.TypeReflectEntryOf(t.Field(i).Type).CanConvertToUnstructured()) {
			below = nil
		}
		fn(i, touched, below)
	}
}
