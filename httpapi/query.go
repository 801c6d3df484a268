package httpapi

import (
	"net/url"
	"strings"
)

// Query is a decoded query string in the order in which it was sent.
type Query []Param

// Param is one key and value of a [Query].
type Param struct{ Key, Value string }

// parseQuery appends to query what raw says, decoded like url.ParseQuery whose error is ignored, which is
// what upstream's handlers see: a pair that does not decode is left out.
func parseQuery(query Query, raw string) Query {
	if raw == "" {
		return nil
	}
	for raw != "" {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		if pair == "" || strings.Contains(pair, ";") {
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		key, err := url.QueryUnescape(key)
		if err != nil {
			continue
		}
		if value, err = url.QueryUnescape(value); err != nil {
			continue
		}
		query = append(query, Param{key, value})
	}
	return query
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

// Values returns a copy of q as upstream's decoders want it.
func (q Query) Values() url.Values {
	values := make(url.Values, len(q))
	for _, p := range q {
		values[p.Key] = append(values[p.Key], p.Value)
	}
	return values
}
