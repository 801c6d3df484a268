package transcode

import (
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/resource"
)

// number reads field number of a message of numbers that has the numbers from 1 on, each
// once and in order.
func (w *walker) number(want uint64, at, to int) (value uint64, next int) {
	if at == to {
		return 0, at
	}
	tag, body := w.varint(at, to)
	if body < 0 || tag != want<<3|wireVarint {
		return 0, -1
	}
	return w.varint(body, to)
}

// time writes a Timestamp. The zero time is null.
func (w *walker) time(from, to int, micro bool) bool {
	if from == to {
		w.dst = append(w.dst, "null"...)
		return true
	}
	seconds, at := w.number(1, from, to)
	if at < 0 {
		return false
	}
	nanos, at := w.number(2, at, to)
	if at != to {
		return false
	}
	w.dst = append(w.dst, '"')
	if !w.date(int64(seconds)) {
		return false
	}
	if micro {
		if nanos > 999999999 {
			return false
		}
		w.dst = append(w.dst, '.')
		w.digits(int(nanos/1000), 100000)
	}
	w.dst = append(w.dst, 'Z', '"')
	return true
}

// date writes the date and the time of day. It is false for the zero time, which is null.
func (w *walker) date(seconds int64) bool {
	const day, maxSeconds = 24 * 60 * 60, 253402300799
	if seconds < 0 || seconds > maxSeconds { // before 1970 or after 9999
		t := time.Unix(seconds, 0).UTC()
		w.dst = t.AppendFormat(w.dst, "2006-01-02T15:04:05")
		return !t.IsZero()
	}
	// Years begin in March here, so that a leap day is the last of one; 400 of them are
	// an era.
	const era = 146097
	z := seconds/day + 719468
	doe := z % era
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	d, m, y := doy-(153*mp+2)/5+1, mp+3, z/era*400+yoe
	if m > 12 {
		m -= 12
		y++
	}
	rest := int(seconds % day)
	w.digits(int(y), 1000)
	w.dst = append(w.dst, '-')
	w.digits(int(m), 10)
	w.dst = append(w.dst, '-')
	w.digits(int(d), 10)
	w.dst = append(w.dst, 'T')
	w.digits(rest/3600, 10)
	w.dst = append(w.dst, ':')
	w.digits(rest/60%60, 10)
	w.dst = append(w.dst, ':')
	w.digits(rest%60, 10)
	return true
}

// digits writes n with as many digits as unit has.
func (w *walker) digits(n, unit int) {
	for ; unit > 0; unit /= 10 {
		w.dst = append(w.dst, byte('0'+n/unit%10))
	}
}

// quantity writes a Quantity, which is a text in field 1.
func (w *walker) quantity(from, to int) bool {
	if from == to {
		w.dst = append(w.dst, `"0"`...)
		return true
	}
	text, ok := w.only(from, to)
	if !ok {
		return false
	}
	if canonicalQuantity(text) {
		w.dst = append(w.dst, '"')
		w.dst = append(w.dst, text...)
		w.dst = append(w.dst, '"')
		return true
	}
	q, err := resource.ParseQuantity(string(text))
	if err != nil {
		return false
	}
	data, err := q.MarshalJSON()
	if err != nil || plain(data[1:len(data)-1]) != len(data)-2 {
		return false
	}
	w.dst = append(w.dst, data...)
	return true
}

// only returns the content of field 1 of a message that has no other field.
func (w *walker) only(from, to int) ([]byte, bool) {
	tag, at := w.varint(from, to)
	if at < 0 || tag != 1<<3|wireLen {
		return nil, false
	}
	n, at := w.varint(at, to)
	if at < 0 || n != uint64(to-at) {
		return nil, false
	}
	return w.src[at:to], true
}

// canonicalQuantity reports whether text is how upstream writes the Quantity that it
// reads from it. It knows whole numbers of moderate size only.
func canonicalQuantity(text []byte) bool {
	n, i := 0, 0
	for ; i < len(text) && '0' <= text[i] && text[i] <= '9'; i++ {
		if i > 0 && n == 0 || i == 6 {
			return false
		}
		n = 10*n + int(text[i]-'0')
	}
	if i == 0 {
		return false
	}
	switch string(text[i:]) {
	case "":
		return n == 0 || n%1000 != 0
	case "m", "k", "M", "G":
		return n%1000 != 0
	case "Ki", "Mi", "Gi":
		return n%1024 != 0
	}
	return false
}

// intOrString writes an IntOrString: which of the two, the number, the text.
func (w *walker) intOrString(from, to int) bool {
	if from == to {
		w.dst = append(w.dst, '0')
		return true
	}
	which, at := w.number(1, from, to)
	if at < 0 {
		return false
	}
	number, at := w.number(2, at, to)
	if at < 0 {
		return false
	}
	tag, at := w.varint(at, to)
	if at < 0 || tag != 3<<3|wireLen {
		return false
	}
	n, at := w.varint(at, to)
	if at < 0 || n != uint64(to-at) {
		return false
	}
	switch which {
	case 0:
		w.dst = strconv.AppendInt(w.dst, int64(int32(number)), 10)
	case 1:
		w.dst = appendString(w.dst, w.src[at:to])
	default:
		return false
	}
	return true
}

// fieldSet writes a FieldsV1, which is JSON in field 1.
func (w *walker) fieldSet(from, to int) bool {
	if from == to {
		w.dst = append(w.dst, "null"...)
		return true
	}
	text, ok := w.only(from, to)
	if !ok || len(text) == 0 || text[0] >= utf8.RuneSelf { // CBOR begins so
		return false
	}
	if plainObjects(text) {
		w.dst = append(w.dst, text...)
		return true
	}
	return w.json(text)
}

// raw writes a RawExtension, which is JSON in field 1.
func (w *walker) raw(from, to int) bool {
	if from == to {
		w.dst = append(w.dst, "null"...)
		return true
	}
	text, ok := w.only(from, to)
	if !ok || len(text) == 0 {
		return false
	}
	switch text[0] {
	case '{', '[', '"', ' ', '\n', '\t', '\r', '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'n', 't', 'f':
		return w.json(text)
	default:
		return false
	}
}

// json writes JSON as encoding/json writes the result of a MarshalJSON: without spaces, and
// with some characters escaped.
func (w *walker) json(text []byte) bool {
	data, err := json.Marshal(json.RawMessage(text))
	if err != nil {
		return false
	}
	w.dst = append(w.dst, data...)
	return true
}

// plainObjects reports whether text is JSON that encoding/json would not change, and
// nothing but objects in objects. It knows no escapes but those of quotes and
// backslashes, and no spaces.
func plainObjects(text []byte) bool {
	depth, at := 1, 1
	if len(text) < 2 || text[0] != '{' {
		return false
	}
	for fresh := true; at < len(text); at++ {
		switch {
		case text[at] == '}' && depth > 0:
			if depth--; depth == 0 {
				return at+1 == len(text)
			}
			fresh = false
			continue
		case !fresh && text[at] == ',':
			at++
		case !fresh:
			return false
		}
		if at = plainName(text, at); at < 0 || at+1 >= len(text) || text[at] != ':' || text[at+1] != '{' {
			return false
		}
		at++
		depth++
		fresh = true
	}
	return false
}

// plainName returns where the string that begins at text[at] ends, -1 if it is none or
// not plain.
func plainName(text []byte, at int) int {
	if at >= len(text) || text[at] != '"' {
		return -1
	}
	for at++; at < len(text); {
		at += plain(text[at:])
		switch {
		case at >= len(text):
			return -1
		case text[at] == '"':
			return at + 1
		case text[at] != '\\' || at+1 >= len(text) || text[at+1] != '"' && text[at+1] != '\\':
			return -1
		}
		at += 2
	}
	return -1
}
