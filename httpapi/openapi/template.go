package openapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Template is the description of a sample. Other descriptions differ from it only by names and by the
// schema of their kind. It is built once for all of them.
type Template[T any] struct {
	// Placeholders are the names of the sample. They occur nowhere else in the description, not even as
	// a part of another placeholder, and need no escape in JSON.
	Placeholders []string
	// KindSchema is the name of the schema that each variant replaces by its kind's.
	KindSchema string
	// Build describes the sample.
	Build func() (*T, error)

	once sync.Once
	made *compiled // made in once
	err  error
}

// Variant is a description that is made from a Template.
type Variant[T any] struct {
	Template *Template[T]
	// Names replace the placeholders.
	Names []string
	// KindSchema makes the schema of the variant's kind.
	KindSchema func() (*spec.Schema, error)
}

// compiled is a Template whose placeholders are found.
type compiled struct {
	kindSchema text // its name
	sections   [][]memberText
	top        []member // of the whole document
}

// memberText is a member with placeholders.
type memberText struct{ name, value text }

// text is a text with holes for names.
type text struct {
	pieces []string // one more than there are holes
	holes  []int    // indices of names
}

// newText returns s with holes in place of the placeholders.
func newText(s string, placeholders []string) text {
	var t text
	for {
		first, at := -1, len(s)
		for i, placeholder := range placeholders {
			if found := strings.Index(s[:at], placeholder); found >= 0 {
				first, at = i, found
			}
		}
		t.pieces = append(t.pieces, s[:at])
		if first < 0 {
			return t
		}
		t.holes = append(t.holes, first)
		s = s[at+len(placeholders[first]):]
	}
}

// append appends t to dst, with names in its holes.
func (t *text) append(dst []byte, names []string) []byte {
	for i, hole := range t.holes {
		dst = append(append(dst, t.pieces[i]...), names[hole]...)
	}
	return append(dst, t.pieces[len(t.holes)]...)
}

// with returns t with names in its holes.
func (t *text) with(names []string) string { return string(t.append(nil, names)) }

// compile finds the placeholders in the members of the description of the sample. The first call builds it: split
// returns its members by section, and the members of the whole document.
func (t *Template[T]) compile(split func(build func() (*T, error)) (sections [][]member, top []member, err error)) (*compiled, error) {
	t.once.Do(func() {
		sections, top, err := split(t.Build)
		if err != nil {
			t.err = err
			return
		}
		t.made = &compiled{kindSchema: newText(t.KindSchema, t.Placeholders), top: top}
		for _, list := range sections {
			var made []memberText
			for _, m := range list {
				if m.Name != t.KindSchema {
					made = append(made, memberText{newText(m.Name, t.Placeholders), newText(string(m.Value), t.Placeholders)})
				}
			}
			t.made.sections = append(t.made.sections, made)
		}
	})
	return t.made, t.err
}

// fill appends the members for names to the sections of the same numbers. A member without placeholders is the
// same for all variants: fill adds it once, and notes its name in shared.
func (c *compiled) fill(names []string, shared map[string]bool, sections ...*[]member) {
	for i, list := range c.sections {
		for _, h := range list {
			if len(h.name.holes) == 0 {
				if shared[h.name.pieces[0]] {
					continue
				}
				shared[h.name.pieces[0]] = true
			}
			*sections[i] = append(*sections[i], member{h.name.with(names), h.value.append(nil, names)})
		}
	}
}

// meets reports whether a member for names has a name that known has in the section of the same number.
func (c *compiled) meets(names []string, known ...map[string][]byte) bool {
	for i, list := range c.sections {
		for _, h := range list {
			if len(h.name.holes) > 0 && known[i][h.name.with(names)] != nil {
				return true
			}
		}
	}
	return false
}

// documentV3 is the JSON of a document of OpenAPI v3, in its sections.
type documentV3 struct {
	top            []member
	paths, schemas []member
}

// splitV3 splits the document of OpenAPI v3 that build builds.
func splitV3[T any](build func() (*T, error)) (sections [][]member, top []member, err error) {
	built, err := build()
	if err != nil {
		return nil, nil, err
	}
	data, err := json.Marshal(built)
	if err != nil {
		return nil, nil, fmt.Errorf("httpapi: openapi v3: %w", err)
	}
	if top, err = members(data); err != nil {
		return nil, nil, err
	}
	var paths, schemas []member
	for _, m := range top {
		switch m.Name {
		case "paths":
			paths, err = members(m.Value)
		case "components":
			var components struct {
				Schemas json.RawMessage `json:"schemas"`
			}
			if err = json.Unmarshal(m.Value, &components); err == nil && components.Schemas != nil {
				schemas, err = members(components.Schemas)
			}
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return [][]member{paths, schemas}, top, nil
}

// errUnlike says that two variants define the same name, so that upstream must merge them.
var errUnlike = errors.New("httpapi: openapi: two definitions of one name")

// ofVariants returns the document of OpenAPI v3 that describes variants.
func ofVariants[T any](variants []Variant[T]) (*documentV3, error) {
	d := new(documentV3)
	shared, names := make(map[string]bool), make(map[string]bool)
	for _, v := range variants {
		t, err := v.Template.compile(splitV3)
		if err != nil {
			return nil, err
		}
		definition, err := v.KindSchema()
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(definition)
		if err != nil {
			return nil, fmt.Errorf("httpapi: openapi v3: %w", err)
		}
		before := len(d.schemas)
		t.fill(v.Names, shared, &d.paths, &d.schemas)
		d.schemas = append(d.schemas, member{t.kindSchema.with(v.Names), value})
		for _, m := range d.schemas[before:] {
			if names[m.Name] {
				return nil, errUnlike
			}
			names[m.Name] = true
		}
		d.top = t.top
	}
	return d, nil
}

// write writes the document, in the order in which upstream's builder merges several CRDs.
func (d *documentV3) write(w io.Writer) error {
	var paths, schemas bytes.Buffer // writing to them does not fail
	if err := errors.Join(writeMembers(&paths, nil, d.paths), writeMembers(&schemas, nil, d.schemas)); err != nil {
		return err
	}
	whole := slices.Clone(d.top)
	for i := range whole {
		switch whole[i].Name {
		case "paths":
			whole[i].Value = paths.Bytes()
		case "components":
			whole[i].Value = fmt.Appendf(nil, `{"schemas":%s}`, schemas.Bytes())
		}
	}
	return writeObject(w, whole)
}
