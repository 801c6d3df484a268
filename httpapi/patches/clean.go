package patches

import (
	"bytes"
	"encoding/json"
	"slices"
)

// maxMembers is how many members an object of an applied configuration may have: they are
// compared with each other.
const maxMembers = 256

// isClean reports whether data is JSON in which YAML finds no member twice. It may report false
// for such data as well: keys are to be plain, so that both read the same in them.
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

// keys goes through valid JSON and keeps the keys of the objects that it is in.
type keys struct {
	data []byte
	at   int

	open  []int    // for each object and list around at, how many keys are those of others; -1 for a list
	known [][]byte // keys of the objects around at
	value bool     // in an object, the next string is a value
}

// step goes on by one token. It reports whether the key there, if there is one, is plain and new.
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

// text goes to the end of a string and returns it as it is written.
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
