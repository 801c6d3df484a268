package openapi

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/NYTimes/gziphandler"
	"github.com/klauspost/compress/s2"
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
	parts map[string]*part // by name
	whole *document        // of parts and the built-in kinds; nil before the first request

	building sync.Mutex // held while a document is written
	base     *packed    // document of the built-in kinds; nil before the first write
}

// part is the part of the document that one description adds.
type part struct {
	Description[spec.Swagger]

	// Guarded by building. One of them is set when the part is built: its sections, or the names and
	// schemas of its variants.
	packed *packed
	owns   []own
}

// own holds the names and the schema of one variant. The schema is compressed JSON.
type own struct {
	template *compiled
	names    []string
	value    []byte
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
		klog.ErrorS(err, "OpenAPI v2 has no document")
		w.WriteHeader(http.StatusServiceUnavailable)
	case !ok:
		w.WriteHeader(http.StatusNotAcceptable)
	default:
		p.send(w, r, subType, p.tag)
	}
}

// document returns the current document.
func (s *swaggerService) document() *document {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changedLocked() || s.whole == nil {
		parts := slices.Collect(maps.Values(s.parts))
		s.whole = newDocument(inV2, func(w io.Writer) error { return s.write(w, parts) })
	}
	return s.whole
}

// changedLocked updates s.parts, and reports whether they have changed.
func (s *swaggerService) changedLocked() bool {
	if s.others == nil {
		return false
	}
	descriptions := s.others()
	same := len(descriptions) == len(s.parts)
	for _, d := range descriptions {
		same = same && s.parts[d.Name] != nil && s.parts[d.Name].State == d.State
	}
	if same {
		return false
	}
	next := make(map[string]*part, len(descriptions))
	for _, d := range descriptions {
		if next[d.Name] = s.parts[d.Name]; next[d.Name] == nil || next[d.Name].State != d.State {
			next[d.Name] = &part{Description: d}
		}
	}
	s.parts = next
	return true
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
func (s *swaggerService) write(w io.Writer, parts []*part) error {
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
	var own sections
	for _, m := range top {
		if i := slices.Index(sectionNames[:], m.Name); i >= 0 {
			if own[i], err = members(m.Value); err != nil {
				return err
			}
		}
	}
	added, err := addedBy(parts, &own)
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
			err = writeMembers(w, own[section], added[section])
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
		// Kube-aggregator encodes documents that it has decoded from JSON, with sorted maps. Only its own
		// paths were never JSON.
		for path, item := range built.Paths.Paths {
			if strings.HasPrefix(path, "/apis/"+apiregistrationv1.GroupName+"/") {
				continue
			}
			for _, operation := range []*spec.Operation{item.Get, item.Put, item.Post, item.Delete, item.Options, item.Head, item.Patch} {
				if operation == nil {
					continue
				}
				if err := decodeKind(operation.Extensions); err != nil {
					return nil, err
				}
			}
		}
		if s.base, err = pack(writing(built)); err != nil {
			return nil, err
		}
	}
	base, err := s.base.unpack()
	if err != nil {
		return nil, err
	}
	return *base, nil
}

// decodeKind replaces the kind of an operation by what encoding/json decodes from its JSON. Decoding
// changes nothing else in the documents.
func decodeKind(extensions spec.Extensions) error {
	const key = "x-kubernetes-group-version-kind"
	kind, ok := extensions[key]
	if !ok {
		return nil
	}
	data, err := json.Marshal(kind)
	if err != nil {
		return fmt.Errorf("httpapi: openapi v2: %w", err)
	}
	var decoded any
	if err := json.Unmarshal(data, &decoded); err != nil {
		return fmt.Errorf("httpapi: openapi v2: %w", err)
	}
	extensions[key] = decoded
	return nil
}

// known are the members of the sections of the built-in kinds, by name.
type known [len(sectionNames)]map[string][]byte

// addedBy returns what parts add to own. It leaves out a part that cannot be described.
func addedBy(parts []*part, own *sections) (*sections, error) {
	var have known
	for i, list := range own {
		have[i] = make(map[string][]byte, len(list))
		for _, m := range list {
			have[i][m.Name] = m.Value
		}
	}
	added, shared := new(sections), make(map[string]bool)
	for _, p := range parts {
		if p.packed == nil && p.owns == nil {
			if err := p.build(&have); err != nil {
				klog.ErrorS(err, "OpenAPI v2 leaves out what cannot be described", "name", p.Name)
				continue
			}
		}
		if err := p.add(added, shared); err != nil {
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
		var own sections
		if err := gob.NewDecoder(bytes.NewReader(*whole)).Decode(&own); err != nil {
			return fmt.Errorf("httpapi: openapi v2: %w", err)
		}
		for i := range own {
			added[i] = append(added[i], own[i]...)
		}
		return nil
	}
	for _, o := range p.owns {
		value, err := s2.Decode(nil, o.value)
		if err != nil {
			return fmt.Errorf("httpapi: openapi v2: %w", err)
		}
		o.template.fill(o.names, shared, &added[inPaths], &added[inDefinitions], &added[inParameters])
		added[inDefinitions] = append(added[inDefinitions], member{o.template.own.with(o.names), value})
	}
	return nil
}

// build builds the members of p.
func (p *part) build(have *known) (err error) {
	if p.owns = ownsOf(p, have); p.owns != nil {
		return nil
	}
	list, err := mergedWith(have, p.Build)
	if err != nil {
		return err
	}
	p.packed, err = packFast(func(w io.Writer) error { return gob.NewEncoder(w).Encode(list) })
	return err
}

// ownsOf returns the names and schemas of the variants of p. It returns nil if p has none, or if
// one of their names is known: upstream then chooses another name.
func ownsOf(p *part, have *known) []own {
	if p.Variants == nil {
		return nil
	}
	var owns []own
	for _, v := range p.Variants() {
		t, err := v.Template.compile(func(build func() (*spec.Swagger, error)) ([][]member, []member, error) {
			list, err := mergedWith(have, build)
			if err != nil {
				return nil, nil, err
			}
			return list[:], nil, nil
		})
		if err != nil || t.meets(v.Names, have[:]...) || have[inDefinitions][t.own.with(v.Names)] != nil {
			return nil
		}
		definition, err := v.Own()
		if err != nil {
			return nil
		}
		value, err := definition.MarshalJSON() // as novel does
		if err != nil {
			return nil
		}
		owns = append(owns, own{t, v.Names, s2.EncodeBetter(nil, value)})
	}
	return owns
}

// mergedWith returns the members that a description adds to the known ones. Upstream merges the
// description with the known members of the same names.
func mergedWith(have *known, build func() (*spec.Swagger, error)) (*sections, error) {
	built, err := build()
	if err != nil {
		return nil, err
	}
	own, err := decodedSwagger(built) // as what is known is
	if err != nil {
		return nil, err
	}
	merged := &spec.Swagger{SwaggerProps: spec.SwaggerProps{Paths: &spec.Paths{Paths: make(map[string]spec.PathItem)}}}
	if own.Paths != nil {
		for path := range own.Paths.Paths {
			if have[inPaths][path] != nil {
				merged.Paths.Paths[path] = spec.PathItem{}
			}
		}
	}
	merged.Definitions, err = shared(own.Definitions, have[inDefinitions])
	if err == nil {
		merged.Parameters, err = shared(own.Parameters, have[inParameters])
	}
	if err == nil {
		err = aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(merged, own)
	}
	if err != nil {
		return nil, fmt.Errorf("httpapi: openapi v2: %w", err)
	}
	list := new(sections)
	list[inPaths], err = novel(merged.Paths.Paths, have[inPaths], true)
	if err == nil {
		list[inDefinitions], err = novel(merged.Definitions, have[inDefinitions], false)
	}
	if err == nil {
		list[inParameters], err = novel(merged.Parameters, have[inParameters], false)
	}
	return list, err
}

// writing returns a function that writes document as upstream's handler does.
func writing(document *spec.Swagger) func(w io.Writer) error {
	return func(w io.Writer) error {
		data, err := document.MarshalJSON()
		if err != nil {
			return fmt.Errorf("httpapi: openapi v2: %w", err)
		}
		_, err = w.Write(data)
		return err
	}
}

// decodedSwagger returns built as decoded from its JSON.
func decodedSwagger(built *spec.Swagger) (*spec.Swagger, error) {
	data, err := json.Marshal(built)
	if err != nil {
		return nil, fmt.Errorf("httpapi: openapi v2: %w", err)
	}
	decoded := new(spec.Swagger)
	if err := json.Unmarshal(data, decoded); err != nil {
		return nil, fmt.Errorf("httpapi: openapi v2: %w", err)
	}
	return decoded, nil
}

// shared decodes the known members with a name of own, or with a name that upstream would give to
// one of own.
func shared[T any](own map[string]T, known map[string][]byte) (map[string]T, error) {
	out := make(map[string]T)
	for name := range own {
		for given, i := name, 2; known[given] != nil; given, i = fmt.Sprintf("%s_v%d", name, i), i+1 {
			var v T
			if err := json.Unmarshal(known[given], &v); err != nil {
				return nil, fmt.Errorf("httpapi: openapi v2: %s: %w", given, err)
			}
			out[given] = v
		}
	}
	return out, nil
}

// novel encodes the members of merged that are not known, or known with other content. If stays is true,
// it skips all known members.
func novel[T json.Marshaler](merged map[string]T, known map[string][]byte, stays bool) ([]member, error) {
	var list []member
	for name, v := range merged {
		if known[name] != nil && stays {
			continue
		}
		value, err := v.MarshalJSON() // which escapes less than json.Marshal makes of it
		if err != nil {
			return nil, fmt.Errorf("httpapi: openapi v2: %s: %w", name, err)
		}
		if !bytes.Equal(value, known[name]) {
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

// writeMembers writes an object of own and added members in the order of their names. An added
// member replaces an own one.
func writeMembers(w io.Writer, own, added []member) error {
	all := make([]member, 0, len(own)+len(added))
	all = append(append(all, added...), own...)
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
