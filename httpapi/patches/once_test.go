package patches

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
)

// TestCleanJSONHasNoMemberTwice draws JSON, and what is nearly JSON: in what is clean, YAML finds
// nothing when it reads strictly that it does not find otherwise.
func TestCleanJSONHasNoMemberTwice(t *testing.T) {
	t.Parallel()
	var clean, dirty, twice int
	for seed := range uint64(20000) {
		r := rand.New(rand.NewPCG(seed, 1))
		data := drawJSON(r, 4)
		if r.IntN(3) == 0 {
			at := r.IntN(len(data))
			odd := []string{"\\", "\"", "<<", ",", "{", "}", ":", "# ", "\n", "\t", "\\u0061", "é", "!!", "&a ", "*a", "---\n", "1.0", "[", "]"}
			data = data[:at] + odd[r.IntN(len(odd))] + data[min(len(data), at+r.IntN(2)):]
		}
		var loose, strict map[string]any
		err, strictErr := yaml.Unmarshal([]byte(data), &loose), yaml.UnmarshalStrict([]byte(data), &strict)
		switch isClean := isClean([]byte(data)); {
		case isClean && fmt.Sprint(err) != fmt.Sprint(strictErr):
			t.Fatalf("%s is clean, but YAML says %v, not %v", data, strictErr, err)
		case isClean && err == nil:
			clean++
		case !isClean && err == nil && strictErr == nil:
			dirty++
		case strictErr != nil && err == nil:
			twice++
		}
	}
	t.Logf("%d are clean, %d have a member twice, %d have neither", clean, twice, dirty)
	if clean < 3000 || twice < 1000 || dirty > clean {
		t.Errorf("%d are clean, %d have a member twice, %d have neither", clean, twice, dirty)
	}
}

// drawJSON draws an object, in which members may come twice.
func drawJSON(r *rand.Rand, depth int) string {
	var members []string
	for range r.IntN(5) {
		members = append(members, fmt.Sprintf("%q:%s", []string{"a", "b", "c", "d", "e", "name", "a b", "true", "1"}[r.IntN(9)], drawValue(r, depth-1)))
	}
	return "{" + strings.Join(members, []string{",", ", ", " , "}[r.IntN(3)]) + "}"
}

func drawValue(r *rand.Rand, depth int) string {
	switch n := r.IntN(8); {
	case n < 3 && depth > 0:
		return drawJSON(r, depth)
	case n < 5 && depth > 0:
		var items []string
		for range r.IntN(4) {
			items = append(items, drawValue(r, depth-1))
		}
		return "[" + strings.Join(items, ",") + "]"
	case n < 7:
		return []string{`"a"`, `"a: b"`, `"{\"a\":1,\"a\":2}"`, `"\\"`, `""`}[r.IntN(5)]
	}
	return []string{"1", "1.5", "null", "true", "-3"}[r.IntN(5)]
}

// TestApplyIsReadOnce: only clean bodies are, and only where the directive is one of upstream's.
func TestApplyIsReadOnce(t *testing.T) {
	t.Parallel()
	const apply = "application/apply-patch+yaml"
	for name, c := range map[string]struct {
		method, query, kind, body string
		want                      string // what the handler sees, "" for what was asked
	}{
		"as it is by default":   {http.MethodPatch, "fieldManager=m", apply, `{"a":1}`, "fieldManager=m&fieldValidation=Ignore"},
		"strictly":              {http.MethodPatch, "fieldManager=m&fieldValidation=Strict", apply + "; charset=utf-8", `{"a":1}`, "fieldManager=m&fieldValidation=Ignore"},
		"with warnings":         {http.MethodPatch, "fieldValidation=Warn&force=true", apply, `{"a":{"a":1}}`, "fieldValidation=Ignore&force=true"},
		"without":               {http.MethodPatch, "fieldValidation=Ignore", apply, `{"a":1}`, ""},
		"with another":          {http.MethodPatch, "fieldValidation=Other", apply, `{"a":1}`, ""},
		"with two":              {http.MethodPatch, "fieldValidation=Warn&fieldValidation=Strict", apply, `{"a":1}`, ""},
		"a query that is wrong": {http.MethodPatch, "a=%zz", apply, `{"a":1}`, ""},
		"a member twice":        {http.MethodPatch, "", apply, `{"a":1,"a":1}`, ""},
		"YAML":                  {http.MethodPatch, "", apply, "a: 1", ""},
		"a merge patch":         {http.MethodPatch, "", "application/merge-patch+json", `{"a":1}`, ""},
		"an update":             {http.MethodPut, "", apply, `{"a":1}`, ""},
	} {
		req := httptest.NewRequest(c.method, "/x?"+c.query, strings.NewReader(c.body))
		req.Header.Set("Content-Type", c.kind)
		got := ReadOnce(req)
		body, err := io.ReadAll(got.Body)
		if err != nil || string(body) != c.body {
			t.Errorf("%s: body %q, %v", name, body, err)
		}
		want, changed := c.want, c.want != ""
		if !changed {
			want = c.query
		}
		if got.URL.RawQuery != want || req.URL.RawQuery != c.query {
			t.Errorf("%s: the handler sees %q, want %q", name, got.URL.RawQuery, want)
		}
		for _, options := range []runtime.Object{&metav1.UpdateOptions{FieldValidation: "Ignore"}, &metav1.CreateOptions{FieldValidation: "Ignore"}} {
			seen := "Ignore"
			if changed {
				seen = req.URL.Query().Get("fieldValidation")
			}
			checkAdmission(t, got.Context(), options, seen)
		}
	}
}

// checkAdmission checks which directive admission sees.
func checkAdmission(t *testing.T, ctx context.Context, options runtime.Object, want string) {
	t.Helper()
	attributes := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, "", "", schema.GroupVersionResource{}, "", admission.Update, options, false, nil)
	watcher := &watcher{admission.NewHandler(admission.Update), nil}
	whole := AskedFor(watcher)
	if err := whole.(admission.MutationInterface).Admit(ctx, attributes, nil); err != nil {
		t.Error(err)
	}
	if err := whole.(admission.ValidationInterface).Validate(ctx, attributes, nil); err != nil {
		t.Error(err)
	}
	if fmt.Sprint(watcher.seen) != fmt.Sprint([]string{want, want}) || !whole.Handles(admission.Update) || whole.Handles(admission.Create) {
		t.Errorf("admission sees %q, want %q twice", watcher.seen, want)
	}
	if AskedFor(nil) != nil {
		t.Error("no admission becomes one")
	}
}

// watcher notes the directives that it sees.
type watcher struct {
	*admission.Handler
	seen []string
}

func (w *watcher) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	switch options := a.GetOperationOptions().(type) {
	case *metav1.UpdateOptions:
		w.seen = append(w.seen, options.FieldValidation)
	case *metav1.CreateOptions:
		w.seen = append(w.seen, options.FieldValidation)
	}
	return nil
}

func (w *watcher) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return w.Admit(ctx, a, o)
}
