package relay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/larder-io/larder/kv"
)

// jsonCodec reads application/json. Objects are copied as they are.
type jsonCodec struct{ objects }

func (c *jsonCodec) mediaType() string { return "application/json" }

// unmarshal decodes JSON in linear time. Names of fields are case-sensitive.
func unmarshal(data []byte, into any) error {
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, into); err != nil {
		return malformed(err)
	}
	return nil
}

func (c *jsonCodec) list(body []byte) (l list, err error) {
	var decoded struct {
		Metadata metav1.ListMeta `json:"metadata"`
		Items    json.RawMessage `json:"items"`
	}
	if err := unmarshal(body, &decoded); err != nil {
		return list{}, err
	}
	items := json.NewDecoder(bytes.NewReader(decoded.Items)) // one after the other: a slice of many small ones would be large
	if first, _ := items.Token(); first != json.Delim('[') && first != nil {
		return list{}, fmt.Errorf("%w: items begin with %v", errMalformed, first)
	}
	for items.More() {
		var item json.RawMessage
		_ = items.Decode(&item) // unmarshal has checked it
		o, err := c.object(kv.Create, item)
		if err != nil {
			return list{}, err
		}
		l.objects = append(l.objects, o)
	}
	return l, l.setMeta(decoded.Metadata)
}

// jsonHead is the part of an object that is decoded.
type jsonHead struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        objectMeta `json:"metadata"`
}

// object returns the object that data is. The value may be data.
func (c *jsonCodec) object(kind kv.EventKind, data []byte) (object, error) {
	var head jsonHead
	if err := unmarshal(data, &head); err != nil {
		return object{}, err
	}
	o, err := head.Metadata.object(kind, c.namespaced)
	if err != nil {
		return object{}, err
	}
	switch {
	case head.Kind == c.Kind.Kind && head.APIVersion == c.APIVersion:
		o.value = data
	case head.Kind != "" || head.APIVersion != "":
		return object{}, typeMismatch(head.APIVersion, head.Kind)
	default:
		o.value = c.writer.AppendObject(make([]byte, 0, c.writer.ObjectSize(data)), data)
		o.value = o.value[:len(o.value)-1] // without the end of the line
	}
	return o, nil
}

// frames reads JSON values that follow one another.
func (c *jsonCodec) frames(body io.Reader, limit int64) func() ([]byte, error) {
	limited := &io.LimitedReader{R: body}
	decoder := json.NewDecoder(limited)
	return func() ([]byte, error) {
		limited.N = limit
		var frame json.RawMessage
		err := decoder.Decode(&frame)
		if limited.N <= 0 {
			err = errTooLarge
		}
		return frame, err
	}
}

func (c *jsonCodec) event(frame []byte) (event, error) {
	var decoded metav1.WatchEvent
	if err := unmarshal(frame, &decoded); err != nil {
		return event{}, err
	}
	kind, err := eventKind(decoded.Type, decoded.Object.Raw)
	if err != nil {
		return event{}, err
	}
	o, err := c.object(kind, decoded.Object.Raw)
	return event{kind, o}, err
}
