package wire

import "fmt"

// member finds the value of the member called name of the JSON object that
// starts at data[at], and returns where it starts and stops. It reads no further
// than that member. Names written with escapes are not recognised: encoders
// write none.
func member(data []byte, at int, name string) (start, stop int, err error) {
	if at >= len(data) || data[at] != '{' {
		return 0, 0, fmt.Errorf("%w: no object at byte %d", ErrMalformed, at)
	}
	at = skipSpace(data, at+1)
	for at < len(data) && data[at] != '}' {
		keyStart := at
		keyStop, err := skipString(data, at)
		if err != nil {
			return 0, 0, err
		}
		at = skipSpace(data, keyStop)
		if at >= len(data) || data[at] != ':' {
			return 0, 0, fmt.Errorf("%w: no colon at byte %d", ErrMalformed, at)
		}
		start = skipSpace(data, at+1)
		stop, err = skipValue(data, start)
		if err != nil {
			return 0, 0, err
		}
		if string(data[keyStart+1:keyStop-1]) == name {
			return start, stop, nil
		}
		at = skipSpace(data, stop)
		if at < len(data) && data[at] == ',' {
			at = skipSpace(data, at+1)
		}
	}
	if at >= len(data) {
		return 0, 0, fmt.Errorf("%w: object is cut short", ErrMalformed)
	}
	return 0, 0, fmt.Errorf("%w: no member %s", ErrNoMetadata, name)
}

func skipSpace(data []byte, at int) int {
	for at < len(data) && (data[at] == ' ' || data[at] == '\n' || data[at] == '\t' || data[at] == '\r') {
		at++
	}
	return at
}

// skipString returns where the string that starts at data[at] stops.
func skipString(data []byte, at int) (int, error) {
	if at >= len(data) || data[at] != '"' {
		return 0, fmt.Errorf("%w: no string at byte %d", ErrMalformed, at)
	}
	for i := at + 1; i < len(data); i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i + 1, nil
		}
	}
	return 0, fmt.Errorf("%w: string at byte %d is cut short", ErrMalformed, at)
}

// skipValue returns where the value that starts at data[at] stops. It matches
// brackets by depth alone: what it skips came from an encoder.
func skipValue(data []byte, at int) (int, error) {
	if at >= len(data) {
		return 0, fmt.Errorf("%w: no value at byte %d", ErrMalformed, at)
	}
	switch data[at] {
	case '"':
		return skipString(data, at)
	case '{', '[':
		return skipNested(data, at)
	default:
		return skipScalar(data, at)
	}
}

func skipNested(data []byte, at int) (int, error) {
	depth := 0
	for i := at; i < len(data); {
		switch data[i] {
		case '"':
			stop, err := skipString(data, i)
			if err != nil {
				return 0, err
			}
			i = stop
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			if depth == 0 {
				return i + 1, nil
			}
		}
		i++
	}
	return 0, fmt.Errorf("%w: value at byte %d is cut short", ErrMalformed, at)
}

func skipScalar(data []byte, at int) (int, error) {
	i := at
	for i < len(data) {
		switch data[i] {
		case ',', '}', ']', ' ', '\n', '\t', '\r', ':', '"':
			if i == at {
				return 0, fmt.Errorf("%w: no value at byte %d", ErrMalformed, at)
			}
			return i, nil
		}
		i++
	}
	return i, nil
}
