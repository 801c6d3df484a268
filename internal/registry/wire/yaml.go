package wire

import (
	"bytes"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// yamlPiece is the minimum size of JSON for which a list is converted to YAML in pieces, and of a piece. The conversion
// takes about a hundred times as much memory.
const yamlPiece = 32 << 10

// YAML returns a JSON body as upstream's YAML serializer writes it, or that serializer's error. The items of a large
// list and the rows of a large table are converted in pieces. So only a few of them are in memory as values.
func YAML(body []byte) ([]byte, error) { return yamlInPieces(body, yamlPiece) }

func yamlInPieces(body []byte, size int) ([]byte, error) {
	if len(body) > size {
		for _, name := range []string{"items", "rows"} {
			from, to, err := member(body, 0, name)
			if err == nil && body[from] == '[' && to-from > size {
				return yamlList(body, name, from, to, size)
			}
		}
	}
	return yaml.JSONToYAML(body)
}

// yamlList is YAML of a body whose member called name is the array body[from:to]. Each piece is converted as the same
// member of an object without other members, so that it has the same indentation as in the list.
func yamlList(body []byte, name string, from, to, size int) ([]byte, error) {
	frame, err := yaml.JSONToYAML(slices.Concat(body[:from], []byte("[0]"), body[to:]))
	if err != nil {
		return nil, err
	}
	key := "\n" + name + ":\n"
	head, foot, ok := bytes.Cut(frame, []byte(key+"- 0\n")) // only a member of the body begins at the start of a line
	if !ok {
		return yaml.JSONToYAML(body)
	}
	out := append(append(make([]byte, 0, len(body)+len(body)/2), head...), key...)
	for at, stop := from+1, 0; at < to; at = stop {
		stop = at
		for more := true; more && stop-at < size; stop++ { // past the comma or bracket after an item
			if stop = skipValue(body, skipSpace(body, stop)); stop < 0 {
				return yaml.JSONToYAML(body) // there are no items, or it is not JSON
			}
			stop = skipSpace(body, stop)
			more = body[stop] == ','
		}
		open, items := `{"`+name+`":[`, string(body[at:stop-1])+"]}"
		piece, err := yaml.JSONToYAML([]byte(open + items))
		if err != nil { // may name a line: the character U+0085 begins one
			lines := strings.Repeat("\u0085", bytes.Count(body[:at], []byte("\u0085")))
			_, err = yaml.JSONToYAML([]byte(open + `"` + lines + `",` + items))
			return nil, err
		}
		out = append(out, piece[len(key)-1:]...)
	}
	return append(out, foot...), nil
}
