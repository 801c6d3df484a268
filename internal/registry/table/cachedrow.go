package table

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// A row is cached as bytes:
//
//	flags, length of the text, text, ages
//
// The text is the row in JSON up to its object, without the ages. Each age follows as its distance in the text from the
// previous one, and the seconds and nanoseconds of its start.
//
// If not exactly one of the times that ages.go declares for a column fits, the row is volatile: it is printed for each
// reader.
const (
	rowVolatile = 1 << iota // there is no text
	rowMetadata             // the row has the object's metadata even with includeObject=None
)

// appendRow appends the text of a row that is not volatile, with the ages at now.
func appendRow(dst, row []byte, now time.Time) []byte {
	length, n := binary.Uvarint(row[1:])
	text, ages := row[1+n:1+n+int(length)], row[1+n+int(length):]
	for len(ages) > 0 {
		distance, n := binary.Uvarint(ages)
		seconds, m := binary.Varint(ages[n:])
		nanos, l := binary.Uvarint(ages[n+m:])
		ages = ages[n+m+l:]
		dst = append(dst, text[:distance]...)
		text = text[distance:]
		age := duration.HumanDuration(now.Sub(time.Unix(seconds, int64(nanos))))
		if age[0] == '<' { // in JSON
			age = `\u003cinvalid\u003e`
		}
		dst = append(dst, age...)
	}
	return append(dst, text...)
}

// appendText appends a row in JSON up to its object. cell appends the i-th cell.
func appendText(dst []byte, row metav1.TableRow, cell func(dst []byte, i int) ([]byte, error)) ([]byte, error) {
	dst = append(dst, `{"cells":`...)
	if row.Cells == nil {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, '[')
		for i := range row.Cells {
			if i > 0 {
				dst = append(dst, ',')
			}
			var err error
			if dst, err = cell(dst, i); err != nil {
				return dst, err
			}
		}
		dst = append(dst, ']')
	}
	if len(row.Conditions) > 0 {
		conditions, err := marshalJSON(row.Conditions)
		if err != nil {
			return dst, err
		}
		dst = append(append(dst, `,"conditions":`...), conditions...)
	}
	return append(dst, `,"object":`...), nil
}

func joinRow(flags byte, text, ages []byte) []byte {
	row := make([]byte, 0, 1+binary.MaxVarintLen32+len(text)+len(ages))
	row = binary.AppendUvarint(append(row, flags), uint64(len(text)))
	return append(append(row, text...), ages...)
}

// marshalJSON returns obj as encoding/json writes it.
func marshalJSON(obj any) ([]byte, error) {
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("registry: table: %w", err)
	}
	return data, nil
}
