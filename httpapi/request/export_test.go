package request

import "k8s.io/apimachinery/pkg/apis/meta/internalversion"

// ParseQuery reads a query string alone.
func ParseQuery(raw string) Query { return parseQuery(nil, raw) }

// DecodeListOptions reads the list options of a query.
func DecodeListOptions(q Query) (*internalversion.ListOptions, error) { return decodeListOptions(q) }
