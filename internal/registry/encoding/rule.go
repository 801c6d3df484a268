package encoding

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"strconv"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/fields"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/wire"
)

// rule makes the cached objects of values with one fingerprint. A rule with misses only counts them.
type rule struct {
	misses         int           // values with the fingerprint that were decoded; 0 once there is a rule
	lookups        atomic.Uint32 // uses by fingerprint, and not by a recent pattern
	body           *template     // of the tokens and the revision; nil if only the revision is set
	labels, fields []attribute
}

// attribute is a label or a selectable field. Its value is a token or constant.
type attribute struct {
	name, value string
	token       int // constant for none
}

const constant = -1

// size returns the approximate memory of r.
func (r *rule) size() int {
	const ruleSize, attributeSize = 128, 40
	if r == nil {
		return 0
	}
	n := ruleSize + attributeSize*(len(r.labels)+len(r.fields))
	if r.body != nil {
		n += r.body.size()
	}
	return n
}

// make completes config for v, as [ruleCache.complete] says, and reports whether it could.
func (r *rule) make(v *inspected, config *cache.ObjectConfig) bool {
	v.setContents(max(config.Revision, 1))
	switch {
	case r.body != nil:
		config.Body = r.body.write(v.contents)
	case config.Revision == 0:
		config.Body = v.raw
	default:
		body, err := wire.AppendRevisionProtobuf(make([]byte, 0, len(v.raw)+wire.MaxRevision), v.raw, config.Revision)
		if err != nil {
			return false
		}
		config.Body = body
	}
	config.Labels, config.Fields = valuesOf(r.labels, v.contents), valuesOf(r.fields, v.contents)
	return true
}

func valuesOf(attributes []attribute, contents [][]byte) map[string]string {
	values := make(map[string]string, len(attributes))
	for _, a := range attributes {
		if a.token != constant {
			a.value = string(contents[a.token])
		}
		values[a.name] = a.value
	}
	return values
}

// markRevision is the revision of values with unique tokens.
const markRevision = 4611686018427387001

// ruleOf makes the rule of the fingerprint of v, which inspect has made of data. It returns nil if there is none.
func (rc *ruleCache) ruleOf(v *inspected, data []byte, key string) *rule {
	want := cache.ObjectConfig{Key: key, Revision: 1}
	if err := rc.codec.decodeInto(data, &want); err != nil {
		return nil
	}
	marks := newMarks(v.tokens)
	raw := v.template(func(i int, _ token) (int, bool) { return i, true }).write(marks.contents)
	made := cache.ObjectConfig{Key: key, Revision: markRevision}
	if err := rc.codec.decodeInto(v.fingerprint.kind.value(raw), &made); err != nil {
		return nil
	}
	r := &rule{labels: attributesOf(made.Labels, marks), fields: attributesOf(made.Fields, marks)}
	if !unchanged(v.raw, &want) || !unchanged(raw, &made) {
		var body skeleton
		if !body.make(made.Body, rc.kinds[0].layouts()) {
			return nil
		}
		r.body = body.template(func(_ int, t token) (int, bool) {
			number, ok := marks.tokens[string(t.content)]
			return number, ok
		})
	}
	got := cache.ObjectConfig{Revision: want.Revision}
	if !r.make(v, &got) || !bytes.Equal(got.Body, want.Body) ||
		!maps.Equal(got.Labels, want.Labels) || !maps.Equal(got.Fields, want.Fields) {
		return nil
	}
	return r
}

// unchanged reports whether an object is stored as it is served, except for its revision.
func unchanged(raw []byte, config *cache.ObjectConfig) bool {
	body, err := wire.AppendRevisionProtobuf(nil, raw, config.Revision)
	return err == nil && bytes.Equal(body, config.Body)
}

// marks are unique contents that replace tokens.
type marks struct {
	contents [][]byte // by token, and the revision
	tokens   map[string]int
}

func newMarks(tokens []token) marks {
	m := marks{tokens: make(map[string]int, len(tokens)+1)}
	for i, t := range tokens {
		var content []byte
		switch t.role {
		case nameToken:
			content = fmt.Appendf(nil, "\x7fname-%d", t.number)
		case timeToken:
			content = timestamp(uint64(86400+i), 0)
		case microTimeToken:
			content = timestamp(uint64(86400+i), 1000) // shows if it becomes a Time
		default:
			content = fmt.Appendf(nil, "\x7fopaque-%d", i)
		}
		m.add(content)
	}
	m.add(strconv.AppendInt(nil, markRevision, 10))
	return m
}

// timestamp returns the message of a time.
func timestamp(seconds, nanos uint64) []byte {
	return binary.AppendUvarint(append(binary.AppendUvarint([]byte{1 << 3}, seconds), 2<<3), nanos)
}

func (m *marks) add(content []byte) {
	if _, known := m.tokens[string(content)]; !known { // a name that occurs twice
		m.tokens[string(content)] = len(m.contents)
	}
	m.contents = append(m.contents, content)
}

// attributesOf returns the attributes with these values.
func attributesOf(values fields.Set, marks marks) []attribute {
	all := make([]attribute, 0, len(values))
	for name, value := range values {
		a := attribute{name: name, token: constant}
		if token, ok := marks.tokens[value]; ok {
			a.token = token
		} else {
			a.value = value
		}
		all = append(all, a)
	}
	return all
}
