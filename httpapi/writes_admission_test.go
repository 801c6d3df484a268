package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"pgregory.net/rapid"
)

// admissionScript is the action of admission on one request, the same on both sides.
type admissionScript struct {
	ignores []admission.Operation // operations that it does not handle

	label, owners, rename bool
	managed               string // change of managedFields: "", none, empty, garbage, other, time
	refuse, rejects       string // by which phase the request is refused, and how
	warnings              []string
	annotations           bool
	races                 int    // number of concurrent writes of the same object
	race                  string // action of races: touch, delete, recreate
	large                 bool   // it makes the object too large to be stored with its managedFields
}

// drawAdmission draws a script.
func (t requests) drawAdmission() admissionScript {
	var a admissionScript
	if !t.one(2, "admission") {
		return a
	}
	if t.one(20, "ignores") {
		a.ignores = []admission.Operation{pick(t, "ignored", admission.Create, admission.Update, admission.Delete)}
	}
	a.label, a.owners, a.annotations = t.one(3, "label"), t.one(5, "owners"), t.one(4, "annotations")
	a.rename, a.large = t.one(30, "rename"), t.one(12, "large")
	if t.one(4, "managed") {
		a.managed = pick(t, "managedFields", "none", "empty", "garbage", "other", "time")
	}
	if t.one(15, "refuse") {
		a.refuse = pick(t, "phase", "admit", "validate")
		a.rejects = pick(t, "refusal", "forbidden", "plain", "busy", "missing")
	}
	if t.one(3, "warn") {
		a.warnings = rapid.SliceOfN(rapid.SampledFrom([]string{"first", "second", "é\n\"quoted\"", strings.Repeat("long ", 100), ""}), 1, 3).Draw(t.T, "warnings")
	}
	if t.one(4, "race") {
		a.races = pick(t, "races", 1, 1, 1, 2, 3, 7)
		a.race = pick(t, "race", "touch", "touch", "touch", "recreate", "delete")
	}
	return a
}

// scriptedAdmission changes requests according to a script, and records its calls.
type scriptedAdmission struct {
	side *writesSide

	mu     sync.Mutex
	script admissionScript // guarded by mu
	races  int             // guarded by mu; concurrent writes that have not happened yet
	calls  []string        // guarded by mu
}

// chain is the admission of a server, with upstream's metrics.
func (s *scriptedAdmission) chain() admission.Interface {
	return admissionmetrics.WithStepMetrics(s)
}

func (s *scriptedAdmission) begin(script admissionScript) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script, s.races, s.calls = script, script.races, nil
}

// end returns the calls since begin.
func (s *scriptedAdmission) end() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.script, s.races, s.calls = admissionScript{}, 0, nil
	return calls
}

// Handles implements admission.Interface.
func (s *scriptedAdmission) Handles(operation admission.Operation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.Contains(s.script.ignores, operation)
}

// Admit implements admission.MutationInterface.
func (s *scriptedAdmission) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note("admit", ctx, a, o)
	for _, text := range s.script.warnings {
		warning.AddWarning(ctx, "admission", text)
	}
	if s.script.annotations {
		s.noteError(a.AddAnnotation("admission.example.org/admitted", a.GetName()))
		s.noteError(a.AddAnnotationWithLevel("admission.example.org/request", "r", auditinternal.LevelRequest))
		audit.AddAuditAnnotation(ctx, "audit.example.org/"+string(a.GetOperation()), "x")
	}
	s.race(a)
	if s.script.refuse == "admit" {
		return s.refusal(a)
	}
	if object, err := meta.Accessor(a.GetObject()); err == nil && a.GetOperation() != admission.Delete {
		s.spoil(object)
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (s *scriptedAdmission) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note("validate", ctx, a, o)
	if s.script.annotations {
		s.noteError(a.AddAnnotation("admission.example.org/validated", "yes"))
		warning.AddWarning(ctx, "", "validated")
	}
	if s.script.refuse == "validate" {
		return s.refusal(a)
	}
	return nil
}

func (s *scriptedAdmission) refusal(a admission.Attributes) error {
	switch s.script.rejects {
	case "forbidden":
		return admission.NewForbidden(a, errors.New("not by this script"))
	case "plain":
		return errors.New("no")
	case "busy":
		return apierrors.NewTooManyRequests("later", 7)
	}
	return admission.NewNotFound(a)
}

// spoil changes an object as mutating plugins and webhooks may.
func (s *scriptedAdmission) spoil(object metav1.Object) {
	if s.script.label {
		labels := object.GetLabels()
		if labels == nil {
			labels = make(map[string]string)
		}
		labels["admitted"] = "yes"
		object.SetLabels(labels)
	}
	if s.script.owners {
		owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "o", UID: "11111111-0000-0000-0000-000000000000"}
		object.SetOwnerReferences(append(object.GetOwnerReferences(), owner, owner))
	}
	if s.script.rename {
		object.SetName(object.GetName() + "x")
	}
	if s.script.large {
		annotations := object.GetAnnotations()
		if annotations == nil {
			annotations = make(map[string]string)
		}
		annotations["large"] = strings.Repeat("x", maxStoredObject-600)
		object.SetAnnotations(annotations)
	}
	entries := object.GetManagedFields()
	switch s.script.managed {
	case "none":
		object.SetManagedFields(nil)
	case "empty":
		object.SetManagedFields([]metav1.ManagedFieldsEntry{})
	case "garbage":
		object.SetManagedFields(append(slices.Clone(entries), metav1.ManagedFieldsEntry{Manager: "m", Operation: "Guess"}))
	case "other":
		object.SetManagedFields(append(slices.Clone(entries), metav1.ManagedFieldsEntry{
			Manager: "admission", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:admitted":{}}}}`),
		}))
	case "time":
		for i := range entries {
			entries[i].Time = nil
		}
	}
}

// race writes the object of a request, as a concurrent request would.
func (s *scriptedAdmission) race(a admission.Attributes) {
	if s.races == 0 || a.GetName() == "" {
		return
	}
	kind := kindOf(a.GetResource().GroupResource())
	if kind == nil {
		return
	}
	s.races--
	defer s.side.awaitWrites(kind, a.GetNamespace())
	key := kind.key(a.GetNamespace(), a.GetName())
	object, metadata, _ := s.side.stored(key)
	switch {
	case object == nil && s.script.race == "recreate":
		object = kind.decoded(kind.base(a.GetName()))
		metadata, _ = meta.Accessor(object)
		metadata.SetNamespace(a.GetNamespace())
		metadata.SetUID("22222222-0000-0000-0000-000000000000")
	case object == nil:
		return
	case s.script.race == "delete":
		s.side.store.PutAll(map[string][]byte{key: nil})
		return
	}
	annotations := map[string]string{"raced": fmt.Sprint(s.races)}
	for name, value := range metadata.GetAnnotations() {
		if name != "raced" {
			annotations[name] = value
		}
	}
	metadata.SetAnnotations(annotations)
	s.side.store.PutAll(map[string][]byte{key: encodedInProtobuf(object)})
}

// encodedInProtobuf is a versioned object as a store or a request has it.
func encodedInProtobuf(object runtime.Object) []byte {
	info, _ := runtime.SerializerInfoForMediaType(legacyscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	data, err := runtime.Encode(info.Serializer, object)
	if err != nil {
		panic(err)
	}
	return data
}

// note records a call of admission with its attributes.
func (s *scriptedAdmission) note(phase string, ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) {
	text := func(v any) string {
		out, err := json.Marshal(v)
		if err != nil {
			return err.Error()
		}
		return s.side.plain(string(out))
	}
	made, err := o.GetObjectCreater().New(a.GetKind())
	end, _ := ctx.Deadline() // in an hour, or in the 34 s of a write
	s.calls = append(s.calls, fmt.Sprintf("%s within a minute %v, %s %v %v %q in %q/%q, dry run %v, by %v, options %T %s, makes %T %v, equivalents %v\n  object %T %s\n  old %T %s", phase, time.Until(end) < time.Minute, a.GetOperation(), a.GetResource(), a.GetKind(),
		a.GetSubresource(), a.GetNamespace(), s.side.plain(a.GetName()), a.IsDryRun(), a.GetUserInfo(), a.GetOperationOptions(), text(a.GetOperationOptions()), made, err,
		o.GetEquivalentResourceMapper().EquivalentResourcesFor(a.GetResource(), a.GetSubresource()),
		a.GetObject(), text(a.GetObject()), a.GetOldObject(), text(a.GetOldObject())))
}

func (s *scriptedAdmission) noteError(err error) {
	if err != nil {
		s.calls = append(s.calls, err.Error())
	}
}
