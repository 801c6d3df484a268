package managedfields

import (
	"bytes"
	"slices"
	"strings"
)

// tokens are the keys of items that nearly every object has others of: addresses and UIDs. What
// becomes of a record depends on which of them are equal and on their order, but not on what
// they are. So they are numbered, and a record with other ones comes out of the same change with
// those in the same places.
type tokens struct {
	texts   []string
	refused bool // one of them cannot be put into a record as it is
}

// maxTokens is how many tokens may be numbered: a number takes a byte.
const maxTokens = 32

// tokenMark begins a token's number in a record. No record has it: it is no part of JSON.
const tokenMark = 0

// isToken says whether items of lists that are keyed by the field of this name alone are known
// by tokens.
func isToken(name string) bool { return name == "ip" || name == "uid" }

// number returns the number of a token.
func (t *tokens) number(text string) byte {
	if i := slices.Index(t.texts, text); i >= 0 {
		return byte(i)
	}
	if len(t.texts) == maxTokens || strings.ContainsFunc(text, needsEscape) {
		t.refused = true
		return 0
	}
	t.texts = append(t.texts, text)
	return byte(len(t.texts) - 1)
}

func needsEscape(r rune) bool {
	return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '.' && r != ':' && r != '-'
}

// appendOrder appends in which order the tokens are.
func (t *tokens) appendOrder(dst []byte) []byte {
	sorted := slices.Sorted(slices.Values(t.texts))
	for _, text := range sorted {
		dst = append(dst, byte(slices.Index(t.texts, text)))
	}
	return append(dst, byte(len(sorted)))
}

// tokenStarts is what is before tokens in a record, which is JSON whose names are JSON again.
func tokenStarts() [2]string { return [2]string{`"k:{\"ip\":\"`, `"k:{\"uid\":\"`} }

// appendNumbered appends the fields of a record with numbers in the place of tokens.
func (t *tokens) appendNumbered(dst, raw []byte) []byte {
	if bytes.IndexByte(raw, tokenMark) >= 0 {
		t.refused = true
		return dst
	}
	for {
		start := -1
		for _, s := range tokenStarts() {
			if i := bytes.Index(raw, []byte(s)); i >= 0 && (start < 0 || i+len(s) < start) {
				start = i + len(s)
			}
		}
		if start < 0 {
			return append(dst, raw...)
		}
		text, rest, ok := bytes.Cut(raw[start:], []byte(`\`))
		if !ok || !bytes.HasPrefix(rest, []byte(`"}"`)) {
			t.refused = true
			return dst
		}
		dst = append(append(dst, raw[:start]...), tokenMark, t.number(string(text)))
		raw = raw[start+len(text):]
	}
}

// insert returns fields with tokens in the place of their numbers.
func (t *tokens) insert(numbered []byte) []byte {
	size := len(numbered)
	for _, text := range t.texts {
		size += len(text)
	}
	raw := make([]byte, 0, size)
	for {
		i := bytes.IndexByte(numbered, tokenMark)
		if i < 0 {
			return append(raw, numbered...)
		}
		raw = append(append(raw, numbered[:i]...), t.texts[numbered[i+1]]...)
		numbered = numbered[i+2:]
	}
}
