package servedjson

import (
	"fmt"
	"strconv"
	"strings"
)

// AppendRevision appends the object with this resourceVersion to dst, which it returns.
func (d *Document) AppendRevision(dst []byte, revision int64) []byte {
	dst = append(dst, d.data[:d.revision.from]...)
	dst = append(dst, d.before...)
	dst = strconv.AppendInt(dst, revision, 10)
	dst = append(dst, d.after...)
	return append(dst, d.data[d.revision.to:]...)
}

// Len returns the length of the object as it was read.
func (d *Document) Len() int { return len(d.data) }

// Labels returns a copy of the labels, nil if there are none.
func (d *Document) Labels() map[string]string {
	if d.labels.to == 0 {
		return nil
	}
	b := builder{data: string(d.labels.of(d.data))}
	labels := make(map[string]string)
	for more := b.open('}'); more; more = b.next('}') {
		key := b.text()
		b.at++ // the colon
		labels[key] = b.text()
	}
	return labels
}

// Name returns the name, "" if there is none.
func (d *Document) Name() string { return textAt(d.data, d.name) }

// Namespace returns the namespace, "" if there is none.
func (d *Document) Namespace() string { return textAt(d.data, d.namespace) }

func textAt(data []byte, at span) string {
	if at.to == 0 {
		return ""
	}
	b := builder{data: string(at.of(data))}
	return b.text()
}

// Content returns the decoded object, which belongs to the caller.
func (d *Document) Content() map[string]any {
	b := builder{data: string(d.data)}
	return b.object()
}

// builder decodes JSON that a walker has accepted. Strings without escapes are parts of data.
type builder struct {
	data string
	at   int
}

func (b *builder) skip(c byte) bool {
	if b.data[b.at] != c {
		return false
	}
	b.at++
	return true
}

// open and next do what they do in a walker.
func (b *builder) open(end byte) bool {
	b.at++
	return !b.skip(end)
}

func (b *builder) next(end byte) bool {
	more := b.data[b.at] != end
	b.at++
	return more
}

func (b *builder) object() map[string]any {
	m := make(map[string]any)
	for more := b.open('}'); more; more = b.next('}') {
		key := b.text()
		b.at++ // the colon
		m[key] = b.value()
	}
	return m
}

func (b *builder) list() []any {
	var room [16]any
	items := room[:0]
	for more := b.open(']'); more; more = b.next(']') {
		items = append(items, b.value())
	}
	return append(make([]any, 0, len(items)), items...)
}

func (b *builder) value() any {
	switch b.data[b.at] {
	case '"':
		return b.text()
	case '{':
		return b.object()
	case '[':
		return b.list()
	case 't':
		b.at += len("true")
		return true
	case 'f':
		b.at += len("false")
		return false
	case 'n':
		b.at += len("null")
		return nil
	}
	return b.number()
}

// text builds a string. encoding/json writes Go's escapes.
func (b *builder) text() string {
	from := b.at + 1
	to := from + strings.IndexByte(b.data[from:], '"')
	if strings.IndexByte(b.data[from:to], '\\') < 0 {
		b.at = to + 1
		return b.data[from:to]
	}
	to = from
	for b.data[to] != '"' {
		if b.data[to] == '\\' {
			to++
		}
		to++
	}
	b.at = to + 1
	text, err := strconv.Unquote(b.data[from-1 : b.at])
	if err != nil {
		panic(fmt.Sprintf("servedjson: string %s: %v", b.data[from-1:b.at], err)) // it was walked
	}
	return text
}

func (b *builder) number() any {
	n, whole := numberLen(b.data[b.at:])
	text := b.data[b.at : b.at+n]
	b.at += n
	if whole {
		n, _ := strconv.ParseInt(text, 10, 64) // it was walked
		return n
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(fmt.Sprintf("servedjson: number %s: %v", text, err)) // it was walked
	}
	return f
}
