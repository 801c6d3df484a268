package wire

import (
	"bytes"
	"fmt"
)

// member finds the value of the member called name of the JSON object that starts at data[at], and returns where it
// starts and stops. It reads no further than that member. It does not recognize names with escapes, which encoders do
// not write.
func member(data []byte, at int, name string) (start, stop int, err error) {
	malformed := func(at int) (int, int, error) {
		return 0, 0, fmt.Errorf("%w: JSON before byte %d", ErrMalformed, at)
	}
	if at >= len(data) || data[at] != '{' {
		return malformed(at)
	}
	at = skipSpace(data, at+1)
	for at < len(data) && data[at] != '}' {
		key, keyStop := at, skipString(data, at)
		if keyStop < 0 {
			return malformed(at)
		}
		if at = skipSpace(data, keyStop); at >= len(data) || data[at] != ':' {
			return malformed(at)
		}
		start = skipSpace(data, at+1)
		if stop = skipValue(data, start); stop < 0 {
			return malformed(start)
		}
		if string(data[key+1:keyStop-1]) == name {
			return start, stop, nil
		}
		at = skipSpace(data, stop)
		if at < len(data) && data[at] == ',' {
			at = skipSpace(data, at+1)
		}
	}
	if at >= len(data) {
		return malformed(at)
	}
	return 0, 0, fmt.Errorf("%w: no member %s", ErrNoMetadata, name)
}

func skipSpace(data []byte, at int) int {
	for at < len(data) && (data[at] == ' ' || data[at] == '\n' || data[at] == '\t' || data[at] == '\r') {
		at++
	}
	return at
}

// skipString returns where the string that starts at data[at] stops, -1 if there is none.
func skipString(data []byte, at int) int {
	if data[at] != '"' {
		return -1
	}
	for i := at + 1; i < len(data); i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

// skipValue returns the end of the value that starts at data[at], -1 if there is none. It matches brackets by depth
// alone, because data came from an encoder.
func skipValue(data []byte, at int) int {
	for depth := 0; at >= 0 && at < len(data); {
		switch data[at] {
		case '"':
			at = skipString(data, at)
		case '{', '[':
			depth++
			at++
		case '}', ']':
			depth--
			at++
		default:
			if depth == 0 {
				return skipScalar(data, at)
			}
			at++
		}
		switch {
		case depth < 0:
			return -1
		case depth == 0:
			return at
		}
	}
	return -1
}

// skipScalar is skipValue for a number, true, false and null.
func skipScalar(data []byte, at int) int {
	switch n := bytes.IndexAny(data[at:], ",}] \n\t\r:\""); n {
	case 0:
		return -1
	case -1:
		return len(data)
	default:
		return at + n
	}
}
