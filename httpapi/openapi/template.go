package openapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Template is the description of a sample. Other descriptions differ from it only by names and by the
// schema of their own kind. It is built once for all of them.
type Template[T any] struct {
	// Placeholders are the names of the sample. They occur nowhere else in the description, not even as
	// a part of another placeholder, and need no escape in JSON.
	Placeholders []string
	// Own is the name of the schema that each variant replaces by its own.
	Own string
	// Build describes the sample.
	Build func() (*T, error)

	once sync.Once
	v3   *compiled // made in once; nil in OpenAPI v2
	err  error
}

// Variant is a description that is made from a Template.
type Variant[T any] struct {
	Template *Template[T]
	// Names replace the placeholders.
	Names []string
	// Own makes the schema of the variant's own kind.
	Own func() (*spec.Schema, error)
}

// compiled is a Template whose placeholders are found.
type compiled struct {
	own      text
	sections [][]memberText
	top      []member // of the whole document
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

// compile finds the placeholders in the members of a description. own names the schema to leave out.
func compile(own string, placeholders []string, sections ...[]member) *compiled {
	s := &compiled{own: newText(own, placeholders)}
	for _, list := range sections {
		var made []memberText
		for _, m := range list {
			if m.Name != own {
				made = append(made, memberText{newText(m.Name, placeholders), newText(string(m.Value), placeholders)})
			}
		}
		s.sections = append(s.sections, made)
	}
	return s
}

// fill appends the members for names to the sections of the same numbers. A member without placeholders is the
// same for all variants: fill adds it once, and notes its name in shared.
func (s *compiled) fill(names []string, shared map[string]bool, sections ...*[]member) {
	for i, list := range s.sections {
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
func (s *compiled) meets(names []string, known ...map[string][]byte) bool {
	for i, list := range s.sections {
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

// splitV3 splits a document of OpenAPI v3.
func splitV3(data []byte) (*documentV3, error) {
	top, err := members(data)
	if err != nil {
		return nil, err
	}
	d := &documentV3{top: top}
	for _, m := range top {
		switch m.Name {
		case "paths":
			d.paths, err = members(m.Value)
		case "components":
			var parts []member
			if parts, err = members(m.Value); err == nil {
				for _, part := range parts {
					if part.Name == "schemas" {
						d.schemas, err = members(part.Value)
					}
				}
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return d, nil
}

// compileV3 compiles a template of OpenAPI v3. The first call builds the template.
func compileV3[T any](p *Template[T]) (*compiled, error) {
	p.once.Do(func() {
		built, err := p.Build()
		if err != nil {
			p.err = err
			return
		}
		data, err := json.Marshal(built)
		if err != nil {
			p.err = fmt.Errorf("httpapi: openapi v3: %w", err)
			return
		}
		split, err := splitV3(data)
		if err != nil {
			p.err = err
			return
		}
		p.v3 = compile(p.Own, p.Placeholders, split.paths, split.schemas)
		p.v3.top = split.top
	})
	return p.v3, p.err
}

// errUnlike says that two variants define the same name, so that upstream must merge them.
var errUnlike = errors.New("httpapi: openapi: two definitions of one name")

// ofVariants returns the document of OpenAPI v3 that describes variants.
func ofVariants[T any](variants []Variant[T]) (*documentV3, error) {
	d := new(documentV3)
	shared, names := make(map[string]bool), make(map[string]bool)
	for _, v := range variants {
		t, err := compileV3(v.Template)
		if err != nil {
			return nil, err
		}
		definition, err := v.Own()
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(definition)
		if err != nil {
			return nil, fmt.Errorf("httpapi: openapi v3: %w", err)
		}
		before := len(d.schemas)
		t.fill(v.Names, shared, &d.paths, &d.schemas)
		d.schemas = append(d.schemas, member{t.own.with(v.Names), value})
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
	for i, m := range d.top {
		if err := writeName(w, i, m.Name); err != nil {
			return err
		}
		var err error
		switch m.Name {
		case "paths":
			err = writeMembers(w, nil, d.paths)
		case "components":
			if _, err = io.WriteString(w, `{"schemas":`); err == nil {
				err = writeMembers(w, nil, d.schemas)
			}
			if err == nil {
				_, err = io.WriteString(w, "}")
			}
		default:
			_, err = w.Write(m.Value)
		}
		if err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, "}")
	return err
}
