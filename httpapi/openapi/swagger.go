package openapi

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/NYTimes/gziphandler"
	"github.com/klauspost/compress/s2"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

var inV2 = dialect{version: "v2", protobuf: handler.ToProtoBinary, pack: pack}

// swaggerService serves the document of OpenAPI v2. It builds the description of each CRD and
// aggregated server once, and inserts its bytes into the document of the built-in kinds.
// Kube-aggregator merges decoded documents and encodes the result: the same bytes.
type swaggerService struct {
	builtIn func() (*spec.Swagger, error)
	others  func() []Description[spec.Swagger] // of CRDs and aggregated servers

	mu    sync.Mutex
	parts map[string]describedPart[*part] // by name; replaced whole
	whole *document                       // of parts and the built-in kinds; nil before the first request

	building sync.Mutex // held while a document is written
	base     *packed    // document of the built-in kinds; nil before the first write
}

// part is the part of the document that one description adds.
type part struct {
	Description[spec.Swagger]

	// Guarded by building. One of them is set when the part is built: its sections, or the names and
	// schemas of its variants.
	packed   *packed
	variants []builtVariant
}

// builtVariant holds the names and the schema of one variant. The schema is compressed JSON.
type builtVariant struct {
	template *compiled
	names    []string
	schema   []byte
}

func newSwaggerService(builtIn func() (*spec.Swagger, error), others func() []Description[spec.Swagger]) http.Handler {
	s := &swaggerService{builtIn: builtIn, others: others}
	return gziphandler.GzipHandler(http.HandlerFunc(s.serve))
}

// serve follows kube-openapi pkg/handler/handler.go.
func (s *swaggerService) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Add("Vary", "Accept")
	p, subType, ok, err := s.document().acceptable(clauses(r))
	switch {
	case err != nil:
		klog.ErrorS(err, "Cannot build the OpenAPI v2 document")
		w.WriteHeader(http.StatusServiceUnavailable)
	case !ok:
		w.WriteHeader(http.StatusNotAcceptable)
	default:
		p.send(w, r, subType)
	}
}

// document returns the current document.
func (s *swaggerService) document() *document {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts, changed := partsOf(s.parts, s.others(), func(d Description[spec.Swagger]) *part { return &part{Description: d} })
	if changed || s.whole == nil {
		s.parts = parts
		s.whole = newDocument(inV2, func(w io.Writer) error { return s.write(w, parts) })
	}
	return s.whole
}

// sections are the members of the three sections of a document.
type sections [len(sectionNames)][]member

const (
	inPaths = iota
	inDefinitions
	inParameters
)

var sectionNames = [...]string{inPaths: "paths", inDefinitions: "definitions", inParameters: "parameters"}

// member is a member of a JSON object: its name and its value in JSON. The fields are exported for encoding/gob.
type member struct {
	Name  string
	Value []byte
}

// write writes the document of the built-in kinds and parts.
func (s *swaggerService) write(w io.Writer, parts map[string]describedPart[*part]) error {
	s.building.Lock()
	defer s.building.Unlock()
	base, err := s.baseLocked()
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		_, err := w.Write(base)
		return err
	}
	top, err := members(base)
	if err != nil {
		return err
	}
	var builtIn sections
	for _, m := range top {
		if i := slices.Index(sectionNames[:], m.Name); i >= 0 {
			if builtIn[i], err = members(m.Value); err != nil {
				return err
			}
		}
	}
	added, err := addedBy(parts, &builtIn)
	if err != nil {
		return err
	}
	for i, m := range top {
		if err := writeName(w, i, m.Name); err != nil {
			return err
		}
		section := slices.Index(sectionNames[:], m.Name)
		if section < 0 {
			_, err = w.Write(m.Value)
		} else {
			err = writeMembers(w, builtIn[section], added[section])
		}
		if err != nil {
			return err
		}
	}
	_, err = io.WriteString(w, "}")
	return err
}

// baseLocked returns the document of the built-in kinds.
func (s *swaggerService) baseLocked() ([]byte, error) {
	if s.base == nil {
		built, err := s.builtIn()
		if err != nil {
			return nil, err
		}
		// Kube-aggregator has decoded all documents except the one of its own paths. Decoding changes only the kinds
		// of operations.
		for path, item := range built.Paths.Paths {
			if strings.HasPrefix(path, "/apis/"+apiregistrationv1.GroupName+"/") {
				continue
			}
			for _, operation := range []*spec.Operation{item.Get, item.Put, item.Post, item.Delete, item.Options, item.Head, item.Patch} {
				if operation == nil || operation.Extensions[endpoints.RouteMetaGVK] == nil {
					continue
				}
				kinds, err := Decoded(operation.Extensions[endpoints.RouteMetaGVK])
				if err != nil {
					return nil, err
				}
				operation.Extensions[endpoints.RouteMetaGVK] = kinds
			}
		}
		data, err := built.MarshalJSON() // as upstream's handler does
		if err != nil {
			return nil, fmt.Errorf("httpapi: openapi v2: %w", err)
		}
		s.base, err = pack(func(w io.Writer) error {
			_, err := w.Write(data)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	base, err := s.base.unpack()
	if err != nil {
		return nil, err
	}
	return *base, nil
}

// Decoded returns what encoding/json decodes from the JSON of value. Kube-aggregator encodes documents that
// it has decoded, in which the members of extensions are sorted.
func Decoded[T any](value T) (decoded T, err error) {
	data, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(data, &decoded)
	}
	if err != nil {
		err = fmt.Errorf("httpapi: openapi v2: %w", err)
	}
	return decoded, err
}

// memberIndex has the members of the sections of the built-in kinds, by name.
type memberIndex [len(sectionNames)]map[string][]byte

// addedBy returns what parts add to builtIn. It leaves out a part that cannot be described.
func addedBy(parts map[string]describedPart[*part], builtIn *sections) (*sections, error) {
	var index memberIndex
	for i, list := range builtIn {
		index[i] = make(map[string][]byte, len(list))
		for _, m := range list {
			index[i][m.Name] = m.Value
		}
	}
	added, shared := new(sections), make(map[string]bool)
	for name, p := range parts {
		if p.part.packed == nil && p.part.variants == nil {
			if err := p.part.build(&index); err != nil {
				klog.ErrorS(err, "Omitting an API from OpenAPI v2", "name", name)
				continue
			}
		}
		if err := p.part.add(added, shared); err != nil {
			return nil, err
		}
	}
	return added, nil
}

// add adds the members of p, which was built, to added. shared are the names of members that all
// variants have, which are added once.
func (p *part) add(added *sections, shared map[string]bool) error {
	if p.packed != nil {
		whole, err := p.packed.unpack()
		if err != nil {
			return err
		}
		var list sections
		if err := gob.NewDecoder(bytes.NewReader(*whole)).Decode(&list); err != nil {
			return fmt.Errorf("httpapi: openapi v2: %w", err)
		}
		for i := range list {
			added[i] = append(added[i], list[i]...)
		}
		return nil
	}
	for _, v := range p.variants {
		schema, err := s2.Decode(nil, v.schema)
		if err != nil {
			return fmt.Errorf("httpapi: openapi v2: %w", err)
		}
		v.template.fill(v.names, shared, &added[inPaths], &added[inDefinitions], &added[inParameters])
		added[inDefinitions] = append(added[inDefinitions], member{v.template.kindSchema.with(v.names), schema})
	}
	return nil
}

// build builds the members of p.
func (p *part) build(builtIn *memberIndex) (err error) {
	if p.variants = p.buildVariants(builtIn); p.variants != nil {
		return nil
	}
	list, err := mergedWith(builtIn, p.Build)
	if err != nil {
		return err
	}
	p.packed, err = packFast(func(w io.Writer) error { return gob.NewEncoder(w).Encode(list) })
	return err
}

// buildVariants builds the variants of p. It returns nil if p has none, or if one of their names equals a built-in
// member's: upstream then chooses another name.
func (p *part) buildVariants(builtIn *memberIndex) []builtVariant {
	if p.Variants == nil {
		return nil
	}
	var list []builtVariant
	for _, v := range p.Variants() {
		t, err := v.Template.compile(func(build func() (*spec.Swagger, error)) ([][]member, []member, error) {
			list, err := mergedWith(builtIn, build)
			if err != nil {
				return nil, nil, err
			}
			return list[:], nil, nil
		})
		if err != nil || t.meets(v.Names, builtIn[:]...) || builtIn[inDefinitions][t.kindSchema.with(v.Names)] != nil {
			return nil
		}
		definition, err := v.KindSchema()
		if err != nil {
			return nil
		}
		schema, err := definition.MarshalJSON() // as changedMembers does
		if err != nil {
			return nil
		}
		list = append(list, builtVariant{t, v.Names, s2.EncodeBetter(nil, schema)})
	}
	return list
}

// mergedWith returns the members that a description adds to the built-in ones. Upstream merges the
// description with the built-in members of the same names.
func mergedWith(builtIn *memberIndex, build func() (*spec.Swagger, error)) (*sections, error) {
	built, err := build()
	if err != nil {
		return nil, err
	}
	more, err := Decoded(built) // as the built-in members are
	if err != nil {
		return nil, err
	}
	merged := &spec.Swagger{SwaggerProps: spec.SwaggerProps{Paths: &spec.Paths{Paths: make(map[string]spec.PathItem)}}}
	if more.Paths != nil {
		for path := range more.Paths.Paths {
			if builtIn[inPaths][path] != nil {
				merged.Paths.Paths[path] = spec.PathItem{}
			}
		}
	}
	merged.Definitions, err = sameNamed(more.Definitions, builtIn[inDefinitions])
	if err == nil {
		merged.Parameters, err = sameNamed(more.Parameters, builtIn[inParameters])
	}
	if err == nil {
		err = aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(merged, more)
	}
	if err != nil {
		return nil, fmt.Errorf("httpapi: openapi v2: %w", err)
	}
	list, errs := new(sections), [len(sectionNames)]error{}
	list[inPaths], errs[inPaths] = changedMembers(merged.Paths.Paths, builtIn[inPaths], true)
	list[inDefinitions], errs[inDefinitions] = changedMembers(merged.Definitions, builtIn[inDefinitions], false)
	list[inParameters], errs[inParameters] = changedMembers(merged.Parameters, builtIn[inParameters], false)
	return list, errors.Join(errs[:]...)
}

// sameNamed decodes the built-in members with a name of more, or with a name that upstream would give to
// one of more.
func sameNamed[T any](more map[string]T, builtIn map[string][]byte) (map[string]T, error) {
	out := make(map[string]T)
	for name := range more {
		for given, i := name, 2; builtIn[given] != nil; given, i = fmt.Sprintf("%s_v%d", name, i), i+1 {
			var v T
			if err := json.Unmarshal(builtIn[given], &v); err != nil {
				return nil, fmt.Errorf("httpapi: openapi v2: %s: %w", given, err)
			}
			out[given] = v
		}
	}
	return out, nil
}

// changedMembers encodes the members of merged that are not built-in ones, or differ from them. If keep is
// set, it skips all that have the name of a built-in one.
func changedMembers[T json.Marshaler](merged map[string]T, builtIn map[string][]byte, keep bool) ([]member, error) {
	var list []member
	for name, v := range merged {
		if builtIn[name] != nil && keep {
			continue
		}
		value, err := v.MarshalJSON() // MarshalJSON escapes less than json.Marshal
		if err != nil {
			return nil, fmt.Errorf("httpapi: openapi v2: %s: %w", name, err)
		}
		if !bytes.Equal(value, builtIn[name]) {
			list = append(list, member{name, value})
		}
	}
	return list, nil
}

// members splits a JSON object.
func members(object []byte) ([]member, error) {
	in := json.NewDecoder(bytes.NewReader(object))
	if start, err := in.Token(); err != nil || start != json.Delim('{') {
		return nil, errors.Join(errors.New("httpapi: openapi v2: not an object"), err)
	}
	var list []member
	for in.More() {
		name, err := in.Token()
		if err != nil {
			return nil, fmt.Errorf("httpapi: openapi v2: %w", err)
		}
		var value json.RawMessage
		if err := in.Decode(&value); err != nil {
			return nil, fmt.Errorf("httpapi: openapi v2: %w", err)
		}
		text, _ := name.(string) // names of members are strings
		list = append(list, member{text, value})
	}
	return list, nil
}

// writeMembers writes an object of builtIn and added members in the order of their names. An added
// member replaces a built-in one.
func writeMembers(w io.Writer, builtIn, added []member) error {
	all := slices.Concat(added, builtIn)
	slices.SortStableFunc(all, func(a, b member) int { return strings.Compare(a.Name, b.Name) })
	return writeObject(w, slices.CompactFunc(all, func(a, b member) bool { return a.Name == b.Name }))
}

// writeObject writes an object of members in their order.
func writeObject(w io.Writer, list []member) error {
	for i, m := range list {
		if err := writeName(w, i, m.Name); err != nil {
			return err
		}
		if _, err := w.Write(m.Value); err != nil {
			return err
		}
	}
	end := "}"
	if len(list) == 0 {
		end = "{}"
	}
	_, err := io.WriteString(w, end)
	return err
}

// writeName writes the text before the value of the i-th member.
func writeName(w io.Writer, i int, name string) error {
	start := "{"
	if i > 0 {
		start = ","
	}
	quoted, err := json.Marshal(name)
	if err != nil {
		return fmt.Errorf("httpapi: openapi v2: %w", err)
	}
	_, err = io.WriteString(w, start+string(quoted)+":")
	return err
}
