package request

import (
	"net/url"
	"strings"
)

// Query is a decoded query string in the order in which it was sent.
type Query []Param

// Param is one key and value of a [Query].
type Param struct{ Key, Value string }

// MaxParams limits the parameters in a query. Like net/url, parseQuery returns no parameters of a longer query.
const MaxParams = 10000

// parseQuery appends the parameters in raw to query. Like upstream, it leaves out pairs that do not decode.
func parseQuery(query Query, raw string) Query {
	if raw == "" || tooManyParams(raw) {
		return nil
	}
	for raw != "" {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		if p, ok := parseParam(pair); ok {
			query = append(query, p)
		}
	}
	return query
}

func tooManyParams(raw string) bool { return strings.Count(raw, "&") >= MaxParams }

// parseParam decodes one pair; ok is false if it is none.
func parseParam(pair string) (p Param, ok bool) {
	if pair == "" || strings.Contains(pair, ";") {
		return Param{}, false
	}
	key, value, _ := strings.Cut(pair, "=")
	key, err := url.QueryUnescape(key)
	if err != nil {
		return Param{}, false
	}
	if value, err = url.QueryUnescape(value); err != nil {
		return Param{}, false
	}
	return Param{key, value}, true
}

// Encode writes q as a query string, which parses to q.
func (q Query) Encode() string {
	if len(q) == 0 {
		return ""
	}
	var b strings.Builder
	for i, p := range q {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(url.QueryEscape(p.Key))
		b.WriteByte('=')
		b.WriteString(url.QueryEscape(p.Value))
	}
	return b.String()
}

// sentQuery returns the part of raw that parseQuery reads, as it was sent.
func sentQuery(raw string) string {
	if tooManyParams(raw) {
		return ""
	}
	var b strings.Builder
	for pair := range strings.SplitSeq(raw, "&") {
		if _, ok := parseParam(pair); !ok {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('&')
		}
		b.WriteString(pair)
	}
	return b.String()
}

// Lookup returns the first value of key and whether there is one.
func (q Query) Lookup(key string) (string, bool) {
	for _, p := range q {
		if p.Key == key {
			return p.Value, true
		}
	}
	return "", false
}

// Get returns the first value of key, or "".
func (q Query) Get(key string) string {
	value, _ := q.Lookup(key)
	return value
}

// Values returns a copy of q for upstream's decoders.
func (q Query) Values() url.Values {
	values := make(url.Values, len(q))
	for _, p := range q {
		values[p.Key] = append(values[p.Key], p.Value)
	}
	return values
}
