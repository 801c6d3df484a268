package patches

import (
	"bytes"
	"encoding/json"
	"slices"
)

// maxMembers limits the members of an object of an applied configuration, because isClean compares each
// pair.
const maxMembers = 256

// isClean reports whether data is JSON in which YAML finds no duplicate member. It may report false
// for other data, too: it requires plain keys, which JSON and YAML read alike.
func isClean(data []byte) bool {
	if !json.Valid(data) {
		return false
	}
	k := keys{data: data}
	for k.at < len(data) {
		if !k.step() {
			return false
		}
	}
	return true
}

// keys walks valid JSON and remembers the keys of the enclosing objects.
type keys struct {
	data []byte
	at   int

	open  []int    // for each object and list around at, how many keys are those of others; -1 for a list
	known [][]byte // keys of the objects around at
	value bool     // in an object, the next string is a value
}

// step advances by one token. It reports false if the token is a key that is not plain or not new.
func (k *keys) step() bool {
	c := k.data[k.at]
	k.at++
	switch c {
	case '{':
		k.open, k.value = append(k.open, len(k.known)), false
	case '[':
		k.open = append(k.open, -1)
	case '}':
		k.known = k.known[:k.open[len(k.open)-1]]
		k.open = k.open[:len(k.open)-1]
	case ']':
		k.open = k.open[:len(k.open)-1]
	case ',':
		k.value = false
	case ':':
		k.value = true
	case '"':
		text := k.text()
		if n := len(k.open); n > 0 && k.open[n-1] >= 0 && !k.value {
			return k.add(text, k.open[n-1])
		}
	}
	return true
}

// text advances to the end of a string and returns it as written.
func (k *keys) text() []byte {
	from := k.at
	for ; k.data[k.at] != '"'; k.at++ {
		if k.data[k.at] == '\\' {
			k.at++
		}
	}
	k.at++
	return k.data[from : k.at-1]
}

// add adds a key of the object whose keys begin at first.
func (k *keys) add(key []byte, first int) bool {
	own := k.known[first:]
	if len(own) >= maxMembers {
		return false
	}
	for _, c := range key {
		if c <= ' ' || c >= 0x7f || c == '\\' || c == '<' {
			return false
		}
	}
	if slices.ContainsFunc(own, func(other []byte) bool { return bytes.Equal(other, key) }) {
		return false
	}
	k.known = append(k.known, key)
	return true
}
