package transcode

import (
	"encoding/binary"
	"encoding/json"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/larder-io/larder/internal/registry/jsontext"
)

// number reads field number want of a message whose fields are numbers, each present once and in order.
func (w *walker) number(want uint64, at, to int) (value uint64, next int) {
	if at == to {
		return 0, at
	}
	tag, body := varint(w.src[:to], at)
	if body < 0 || tag != want<<3|wireVarint {
		return 0, -1
	}
	return varint(w.src[:to], body)
}

// lastTime caches the message of a time and its text, because many times of an object are equal.
type lastTime struct {
	msg  uint64
	text [32]byte // eight bytes hold no year with more than eight digits
	n    int      // 0 if there is none yet
}

// timeSize is the length of a current time without nanoseconds as a message.
const timeSize = 8

// time writes a Timestamp. The zero time is null.
func (w *walker) time(from, to int, micro bool) bool {
	if micro || to-from != timeSize {
		return w.timestamp(from, to, micro)
	}
	start, msg := len(w.dst), binary.LittleEndian.Uint64(w.src[from:])
	if msg == w.last.msg && w.last.n > 0 {
		w.dst = append(w.dst, w.last.text[:w.last.n]...)
		return true
	}
	if !w.timestamp(from, to, false) {
		return false
	}
	w.last.msg, w.last.n = msg, copy(w.last.text[:], w.dst[start:])
	return true
}

func (w *walker) timestamp(from, to int, micro bool) bool {
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
	format := time.RFC3339
	if !micro {
		nanos = 0
	} else if format = metav1.RFC3339Micro; nanos > 999999999 {
		return false
	}
	t := time.Unix(int64(seconds), int64(nanos)).UTC()
	w.dst = append(t.AppendFormat(append(w.dst, '"'), format), '"')
	return !t.Truncate(time.Second).IsZero() // the zero time is null
}

// quantity writes a Quantity, which is a text in field 1.
func (w *walker) quantity(from, to int) bool {
	if from == to {
		w.dst = append(w.dst, `"0"`...)
		return true
	}
	from, ok := w.only(from, to)
	if !ok {
		return false
	}
	text := w.src[from:to]
	if canonicalQuantity(text) {
		w.quoted(from, to, gapQuantity)
		return true
	}
	q, err := resource.ParseQuantity(string(text))
	if err != nil {
		return false
	}
	data, _ := q.MarshalJSON() // never fails, and writes only digits, letters and signs
	w.dst = append(w.dst, data...)
	return true
}

// only returns the start of the content of field 1, of a message without other fields.
func (w *walker) only(from, to int) (int, bool) {
	tag, at := varint(w.src[:to], from)
	if at < 0 || tag != 1<<3|wireLen {
		return 0, false
	}
	n, at := varint(w.src[:to], at)
	return at, at >= 0 && n == uint64(to-at)
}

// canonicalQuantity reports whether upstream parses text and writes it unchanged. It knows only whole
// numbers of moderate size.
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

// intOrString writes an IntOrString.
func (w *walker) intOrString(from, to int) bool {
	var v intstr.IntOrString
	if v.Unmarshal(w.src[from:to]) != nil {
		return false
	}
	switch v.Type {
	case intstr.Int:
		w.dst = strconv.AppendInt(w.dst, int64(v.IntVal), 10)
	case intstr.String:
		w.dst = jsontext.AppendString(w.dst, v.StrVal)
	default:
		return false
	}
	return true
}

// embedded writes a FieldsV1 or a RawExtension, which have JSON in field 1.
func (w *walker) embedded(from, to int) bool {
	if from == to {
		w.dst = append(w.dst, "null"...)
		return true
	}
	from, ok := w.only(from, to)
	if !ok {
		return false
	}
	if text := w.src[from:to]; !plainObjects(text) {
		return w.json(text)
	}
	w.dst = append(w.dst, w.src[from:to]...)
	w.gap(from, to, len(w.dst)-(to-from), gapJSON)
	return true
}

// json writes JSON as encoding/json writes the result of a MarshalJSON: without spaces, and
// with some characters escaped. It refuses CBOR.
func (w *walker) json(text []byte) bool {
	data, err := json.Marshal(json.RawMessage(text))
	if err != nil {
		return false
	}
	w.dst = append(w.dst, data...)
	return true
}

// plainObjects reports whether text is JSON that encoding/json would not change and that consists of nested objects
// only, as FieldsV1 does.
func plainObjects(text []byte) bool {
	depth, at := 1, 1
	if len(text) < 2 || text[0] != '{' {
		return false
	}
	for fresh := true; at < len(text); at++ {
		switch {
		case text[at] == '}':
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
		if at = jsontext.StringEnd(text, at); at < 0 || at+1 >= len(text) || text[at] != ':' || text[at+1] != '{' {
			return false
		}
		at++
		depth++
		fresh = true
	}
	return false
}
