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

// Pattern is a description that others are like: they differ from it by names, and by one
// definition. It is built once, however many there are.
type Pattern[T any] struct {
	// Placeholders are the names in it, each a text that nothing else in the description has
	// a part of, nor another placeholder. None needs to be escaped in JSON.
	Placeholders []string
	// Own is the name of the definition that the others have their own of. The pattern's is
	// not used.
	Own string
	// Build makes the description.
	Build func() (*T, error)

	once  sync.Once
	built *stencil // made in once; of OpenAPI v3 alone
	err   error
}

// Variant is a description that is like a Pattern.
type Variant[T any] struct {
	Pattern *Pattern[T]
	// Names are in place of the placeholders.
	Names []string
	// Own makes the definition that it has for itself.
	Own func() (*spec.Schema, error)
}

// stencil is what a Pattern makes of names: members of sections.
type stencil struct {
	own      text
	sections [][]hollow
	top      []member // of the whole document, as the pattern has them
}

// hollow is a member with placeholders.
type hollow struct{ name, value text }

// text is a text with holes for names.
type text struct {
	pieces []string // one more than there are holes
	holes  []int    // indices of names
}

// hollowed makes holes of the placeholders in s.
func hollowed(s string, placeholders []string) text {
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

// append appends t with names in its holes to dst.
func (t *text) append(dst []byte, names []string) []byte {
	for i, hole := range t.holes {
		dst = append(append(dst, t.pieces[i]...), names[hole]...)
	}
	return append(dst, t.pieces[len(t.holes)]...)
}

// with returns t with names in its holes.
func (t *text) with(names []string) string { return string(t.append(nil, names)) }

// newStencil makes a stencil of the members of a pattern, without the definition that each
// variant has for itself.
func newStencil(own string, placeholders []string, sections ...[]member) *stencil {
	s := &stencil{own: hollowed(own, placeholders)}
	for _, list := range sections {
		var made []hollow
		for _, m := range list {
			if m.name != own {
				made = append(made, hollow{hollowed(m.name, placeholders), hollowed(string(m.value), placeholders)})
			}
		}
		s.sections = append(s.sections, made)
	}
	return s
}

// fill appends the members that s makes of names to the sections, which are as many as those
// of s. It adds nothing that every variant has alike, and that shared has already.
func (s *stencil) fill(names []string, shared map[string]bool, sections ...*[]member) {
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

// meets reports whether some member that s makes of names has a name that is known already, in
// the section of the same number.
func (s *stencil) meets(names []string, known ...map[string][]byte) bool {
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
		switch m.name {
		case "paths":
			d.paths, err = members(m.value)
		case "components":
			var parts []member
			if parts, err = members(m.value); err == nil {
				for _, part := range parts {
					if part.name == "schemas" {
						d.schemas, err = members(part.value)
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

// stencilV3 is the stencil of a pattern of OpenAPI v3.
func stencilV3[T any](p *Pattern[T]) (*stencil, error) {
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
		p.built = newStencil(p.Own, p.Placeholders, split.paths, split.schemas)
		p.built.top = split.top
	})
	return p.built, p.err
}

// errUnlike says that variants cannot be put together from their patterns.
var errUnlike = errors.New("httpapi: openapi: two definitions of one name")

// ofVariants puts together the document of OpenAPI v3 that describes variants.
func ofVariants[T any](variants []Variant[T]) (*documentV3, error) {
	d := new(documentV3)
	shared, names := make(map[string]bool), make(map[string]bool)
	for _, v := range variants {
		stencil, err := stencilV3(v.Pattern)
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
		stencil.fill(v.Names, shared, &d.paths, &d.schemas)
		d.schemas = append(d.schemas, member{stencil.own.with(v.Names), value})
		for _, m := range d.schemas[before:] {
			if names[m.name] {
				return nil, errUnlike
			}
			names[m.name] = true
		}
		d.top = stencil.top
	}
	return d, nil
}

// write writes the document, as upstream's builder merges those of several definitions.
func (d *documentV3) write(w io.Writer) error {
	for i, m := range d.top {
		if err := writeName(w, i, m.name); err != nil {
			return err
		}
		var err error
		switch m.name {
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
			_, err = w.Write(m.value)
		}
		if err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, "}")
	return err
}
