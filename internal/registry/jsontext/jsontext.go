// Package jsontext writes and recognizes JSON strings as encoding/json writes them.
//
// There are no locks and no goroutines. Functions keep no references to their arguments.
package jsontext

import (
	"encoding/binary"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

const (
	lows  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special returns a nonzero number if one of the 8 bytes in w may be escaped. Its lowest bit belongs to the first such
// byte, because a borrow sets bits only of later bytes.
func special(w uint64) uint64 {
	// In each term the highest bit of a byte is set if the byte is special.
	quote := (w | 0x04*lows) ^ '&'*lows // & and "
	angle := (w | 0x02*lows) ^ '>'*lows // < and >
	slash := w ^ '\\'*lows
	return (w | (w - 0x20*lows) | (quote - lows) | (angle - lows) | (slash - lows)) & highs
}

// IsPlain reports whether encoding/json escapes nothing in src[from:to].
func IsPlain(src []byte, from, to int) bool {
	if to-from >= 8 {
		found := special(binary.LittleEndian.Uint64(src[to-8:]))
		for ; from+8 < to; from += 8 {
			found |= special(binary.LittleEndian.Uint64(src[from:]))
		}
		return found == 0
	}
	if from == to {
		return true
	}
	if from+8 <= len(src) {
		const spaces = ' ' * lows
		others := ^uint64(0) << (8 * (to - from))
		return special(binary.LittleEndian.Uint64(src[from:])&^others|spaces&others) == 0
	}
	return Plain(src[from:to]) == to-from
}

// Plain returns how many bytes of s precede the first that encoding/json may escape: control characters, quotes,
// backslashes, HTML's special characters and bytes that are not ASCII.
func Plain[T []byte | string](s T) int {
	i := 0
	for ; i+8 <= len(s); i += 8 {
		w := uint64(s[i]) | uint64(s[i+1])<<8 | uint64(s[i+2])<<16 | uint64(s[i+3])<<24 |
			uint64(s[i+4])<<32 | uint64(s[i+5])<<40 | uint64(s[i+6])<<48 | uint64(s[i+7])<<56
		if found := special(w); found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	for ; i < len(s); i++ {
		if b := s[i]; b < ' ' || b >= utf8.RuneSelf || b == '"' || b == '\\' || b == '&' || b == '<' || b == '>' {
			return i
		}
	}
	return i
}

// AppendString appends s, with quotes, as encoding/json writes it.
func AppendString[T []byte | string](dst []byte, s T) []byte {
	dst = append(dst, '"')
	for {
		n := Plain(s)
		dst = append(dst, s[:n]...)
		if s = s[n:]; len(s) == 0 {
			return append(dst, '"')
		}
		dst, n = appendSpecial(dst, s)
		s = s[n:]
	}
}

const hex = "0123456789abcdef"

// appendSpecial appends the first character of s, which is not plain, and returns its length in s.
func appendSpecial[T []byte | string](dst []byte, s T) ([]byte, int) {
	switch b := s[0]; {
	case b == '"' || b == '\\':
		return append(dst, '\\', b), 1
	case b == '\b':
		return append(dst, `\b`...), 1
	case b == '\f':
		return append(dst, `\f`...), 1
	case b == '\n':
		return append(dst, `\n`...), 1
	case b == '\r':
		return append(dst, `\r`...), 1
	case b == '\t':
		return append(dst, `\t`...), 1
	case b < ' ' || b == '&' || b == '<' || b == '>':
		return append(dst, '\\', 'u', '0', '0', hex[b>>4], hex[b&0xf]), 1
	case b < utf8.RuneSelf:
		return append(dst, b), 1
	}
	r, n := utf8.DecodeRuneInString(string(s[:min(len(s), utf8.UTFMax)]))
	switch {
	case r == utf8.RuneError && n == 1:
		return append(dst, `\ufffd`...), 1
	case r == '\u2028' || r == '\u2029':
		return append(dst, '\\', 'u', '2', '0', '2', hex[r&0xf]), n
	}
	return append(dst, s[:n]...), n
}

// StringEnd returns the end of the string, with its quotes, that begins at data[at]. It returns -1 if there is none,
// or if decoding and encoding by encoding/json would change it.
func StringEnd(data []byte, at int) int {
	if at >= len(data) || data[at] != '"' {
		return -1
	}
	for at++; ; {
		if at += Plain(data[at:]); at == len(data) {
			return -1
		}
		switch c := data[at]; {
		case c == '"':
			return at + 1
		case c == '\\':
			n := escapeLen(data[at:])
			if n == 0 {
				return -1
			}
			at += n
		case c < utf8.RuneSelf:
			return -1 // control characters and HTML's special characters are escaped
		default:
			r, n := utf8.DecodeRune(data[at:])
			if r == utf8.RuneError && n == 1 || r == '\u2028' || r == '\u2029' {
				return -1
			}
			at += n
		}
	}
}

// escapeLen returns the length of the escape that s begins with, 0 if encoding/json does not write it.
func escapeLen(s []byte) int {
	if len(s) < 2 {
		return 0
	}
	switch s[1] {
	case '"', '\\', 'b', 'f', 'n', 'r', 't':
		return 2
	}
	if len(s) < 6 || s[1] != 'u' {
		return 0
	}
	r, err := strconv.ParseUint(string(s[2:6]), 16, 32)
	var room [6]byte
	if escaped, _ := appendSpecial(room[:0], string(rune(r))); err != nil || string(escaped) != string(s[:6]) {
		return 0
	}
	return 6
}
