package patches

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	sigsyaml "sigs.k8s.io/yaml"
)

// Applied decodes an applied configuration: YAML or, if kind says so, CBOR. If unique is true,
// [CheckApplied] would find no duplicate fields.
//
// Clients send most configurations as JSON, which is valid YAML. Decoding YAML costs several times as
// much, because the library converts YAML to JSON and decodes that. So Applied uses what the JSON decoder
// has decoded if YAML reads the configuration alike.
func Applied(kind types.PatchType, data []byte) (configuration map[string]any, unique bool, err error) {
	if kind == types.ApplyCBORPatchType {
		return configuration, true, direct.Unmarshal(data, &configuration)
	}
	duplicates, err := kjson.UnmarshalStrict(data, &configuration)
	unique = err == nil && len(duplicates) == 0 && hasPlainKeys(configuration)
	if unique && isPlain(data) {
		return configuration, true, nil
	}
	configuration = nil
	return configuration, unique, yaml.Unmarshal(data, &configuration)
}

// ToJSON returns a copy of a patch of the given kind in JSON, as audit events hold it. It returns nil if the patch is
// malformed or is YAML that may have anchors. An event that held anything else could not be written, and neither could
// the others of its batch.
func ToJSON(kind types.PatchType, data []byte) []byte {
	var converted []byte
	var err error
	switch {
	case kind == types.ApplyCBORPatchType:
		var v any
		if err = direct.Unmarshal(data, &v); err == nil {
			converted, err = json.Marshal(v)
		}
	case json.Valid(data) && utf8.Valid(data):
		return bytes.Clone(data)
	case kind == types.ApplyYAMLPatchType && !bytes.ContainsRune(data, '&'): // aliases could make it a thousand times larger
		converted, err = sigsyaml.YAMLToJSON(data)
	}
	if err != nil {
		return nil
	}
	return converted
}

// CheckApplied returns an error if an applied configuration in YAML has duplicate fields.
func CheckApplied(data []byte) error { return yaml.UnmarshalStrict(data, &map[string]any{}) }

// maxPlainDigits and maxPlainKey limit the integers and keys of plain JSON: YAML reads longer integers
// as floats, and refuses longer keys.
const (
	maxPlainDigits = 18
	maxPlainKey    = 128
)

// hasPlainKeys reports whether YAML reads all keys in v, which was decoded from JSON, as JSON does.
func hasPlainKeys(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			odd := strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c > '~' || c == '\\' || c == '<' })
			if odd || !hasPlainKeys(value) {
				return false
			}
		}
	case []any:
		return !slices.ContainsFunc(v, func(item any) bool { return !hasPlainKeys(item) })
	}
	return true
}

// isPlain reports whether YAML reads data, which is JSON with plain keys, as JSON does. It must be an object
// that is not nested deeply. Its strings are printable ASCII with few escapes, and its numbers are integers.
func isPlain(data []byte) bool {
	if data[0] != '{' || deeper(data, MaxDepth) {
		return false
	}
	for at := 0; at < len(data); {
		switch c := data[at]; {
		case c == '"':
			length := plainString(data[at:])
			if length == 0 {
				return false
			}
			at += length
			if at < len(data) && data[at] == ':' && length > maxPlainKey {
				return false
			}
		case c == '-' || '0' <= c && c <= '9':
			length := plainInteger(data[at:])
			if length == 0 {
				return false
			}
			at += length
		case c < ' ' && c != '\n', c == ':' && data[at-1] != '"': // YAML has a key and its colon on one line
			return false
		default:
			at++
		}
	}
	return true
}

// plainString returns the length of the string that text begins with, 0 if it is not plain.
func plainString(text []byte) int {
	for at := 1; ; at++ {
		switch c := text[at]; {
		case c == '"':
			return at + 1
		case c == '\\':
			if at++; text[at] != '"' && text[at] != '\\' && text[at] != 'n' && text[at] != 't' {
				return 0
			}
		case c < ' ' || c > '~':
			return 0
		}
	}
}

// plainInteger returns the length of the number that text begins with, 0 if it is not plain.
func plainInteger(text []byte) int {
	at := 0
	if text[0] == '-' {
		if at++; text[1] == '0' { // "-0" is a float in JSON
			return 0
		}
	}
	digits := 0
	for ; at < len(text) && '0' <= text[at] && text[at] <= '9'; at++ {
		digits++
	}
	if digits > maxPlainDigits || at < len(text) && (text[at] == '.' || text[at] == 'e' || text[at] == 'E') {
		return 0
	}
	return at
}
