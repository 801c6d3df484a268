package encoding

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"
)

// skeletonFields returns a message with one field of each role, nested in its own field 5.
func skeletonFields() *layouts {
	inner := layouts{1: {role: nameToken}, 2: {role: opaqueToken}, 3: {role: timeToken}, 4: {role: microTimeToken}, 7: {role: literalField}}
	outer := inner
	outer[5] = &layout{role: messageField, inner: &inner}
	return &outer
}

// microsecond is a time with a fraction, which only fields with microseconds may have as a token.
const microsecond = "\x08\x01\x10\xe8\x07"

// model describes in words what a skeleton contains.
func model(msg []byte, fields *layouts, names map[string]int) string {
	var out bytes.Buffer
	for len(msg) > 0 {
		number, kind, n := protowire.ConsumeTag(msg)
		size := protowire.ConsumeFieldValue(number, kind, msg[n:])
		value := msg[n : n+size]
		msg = msg[n+size:]
		fmt.Fprintf(&out, "%d/%d:", number, kind)
		if int(number) >= len(fields) || fields[number] == nil {
			fmt.Fprintf(&out, "%q ", value)
			continue
		}
		content, _ := protowire.ConsumeBytes(value)
		switch role := fields[number].role; {
		case role == messageField:
			fmt.Fprintf(&out, "{%s} ", model(content, fields[number].inner, names))
		case role == nameToken && len(content) > 0:
			if _, known := names[string(content)]; !known {
				names[string(content)] = len(names)
			}
			fmt.Fprintf(&out, "name%d ", names[string(content)])
		case role == opaqueToken && len(content) > 0:
			out.WriteString("opaque ")
		case role == timeToken && len(content) == 4 && content[1] > 0 && content[3] == 0: // whole seconds
			out.WriteString("time ")
		case role == microTimeToken && (len(content) == 4 && content[1] > 0 && content[3] == 0 || string(content) == microsecond):
			out.WriteString("time ")
		default:
			fmt.Fprintf(&out, "%q ", content)
		}
	}
	return out.String()
}

func drawMessage(t *rapid.T, depth int) (msg []byte) {
	for range rapid.IntRange(0, 3).Draw(t, "fields") {
		number := protowire.Number(rapid.IntRange(1, 6).Draw(t, "number"))
		if number == 6 {
			msg = protowire.AppendVarint(protowire.AppendTag(msg, number, protowire.VarintType), uint64(rapid.IntRange(0, 1).Draw(t, "value")))
			continue
		}
		content := []byte(rapid.SampledFrom([]string{"", "a", "b", "\x00", "\x01a", "\x0a\x01a", "\x08\x01\x10\x00", "\x08\x02\x10\x00", "\x08\x00\x10\x00", "\x08\x01\x10\x01", microsecond}).Draw(t, "content"))
		if number == 5 {
			content = nil
			if depth < 1 {
				content = drawMessage(t, depth+1)
			}
		}
		msg = protowire.AppendBytes(protowire.AppendTag(msg, number, protowire.BytesType), content)
	}
	return msg
}

// TestSkeletonIsTheMessage checks that two messages have the same skeleton exactly if they differ only in the omitted
// fields.
func TestSkeletonIsTheMessage(t *testing.T) {
	skeletons, models := make(map[string]string), make(map[string]string)
	shared := 0
	rapid.Check(t, func(t *rapid.T) {
		msg := drawMessage(t, 0)
		var s skeleton
		if !s.make(msg, skeletonFields()) {
			return // bytes in the place of a message may be no message
		}
		want := model(msg, skeletonFields(), make(map[string]int))
		got := string(s.bytes)
		if known, ok := models[got]; ok && known != want {
			t.Fatalf("%q is the skeleton of\n%s\nand of\n%s", got, known, want)
		}
		if known, ok := skeletons[want]; ok {
			shared++
			if known != got {
				t.Fatalf("%s\nhas the skeletons\n%q\nand\n%q", want, known, got)
			}
		}
		models[got], skeletons[want] = want, got
	})
	if shared == 0 {
		t.Error("no two messages had the same skeleton: nothing was compared")
	}
}

// TestPatternIsTheSkeleton checks that a message matches the pattern of another exactly if both have the same
// skeleton, and that it then has the same tokens.
func TestPatternIsTheSkeleton(t *testing.T) {
	var all [][]byte // messages with a skeleton
	matched, others := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		msg := drawMessage(t, 0)
		if rapid.IntRange(0, 3).Draw(t, "broken") == 0 {
			msg = append(msg, rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "more")...)
		}
		var own skeleton
		has := own.make(msg, skeletonFields())
		if !has {
			return
		}
		p := own.template(func(_ int, t token) (int, bool) { return t.number, true })
		all = append(all[max(0, len(all)-200):], msg)
		for _, other := range all {
			var want, got skeleton
			want.make(other, skeletonFields())
			same := bytes.Equal(want.bytes, own.bytes)
			if p.match(other, &got) != same {
				t.Fatalf("%q matches the pattern of %q: %t", other, msg, !same)
			}
			if !same {
				others++
				continue
			}
			matched++
			if !slices.EqualFunc(got.tokens, want.tokens, func(a, b token) bool {
				return bytes.Equal(a.content, b.content) && a.role == b.role && a.number == b.number
			}) {
				t.Fatalf("%q has tokens %+v, want %+v", other, got.tokens, want.tokens)
			}
		}
		for n := range msg { // truncated messages
			var got, want skeleton
			same := want.make(msg[:n], skeletonFields()) && bytes.Equal(want.bytes, own.bytes)
			if p.match(msg[:n:n], &got) != same {
				t.Fatalf("%q matches the pattern of %q: %t", msg[:n], msg, !same)
			}
		}
	})
	if matched == 0 || others == 0 {
		t.Errorf("%d messages matched, %d did not: too few for a test", matched, others)
	}
}

// TestSkeletonFinds checks which contents of a message become tokens.
func TestSkeletonFinds(t *testing.T) {
	var msg []byte
	msg = protowire.AppendBytes(protowire.AppendTag(msg, 1, protowire.BytesType), []byte("a"))
	msg = protowire.AppendBytes(protowire.AppendTag(msg, 2, protowire.BytesType), []byte("b"))
	msg = protowire.AppendBytes(protowire.AppendTag(msg, 2, protowire.BytesType), nil)
	msg = protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), msg)
	var s skeleton
	want := []token{{content: []byte("a"), role: nameToken}, {content: []byte("b"), role: opaqueToken}}
	if !s.make(msg, skeletonFields()) || !reflect.DeepEqual(s.tokens, want) {
		t.Errorf("found %+v", s.tokens)
	}
}

// TestTemplateWritesMessagesOfOneSkeleton checks that a template of a message writes that message, and with other
// contents a message of the same skeleton that has those contents.
func TestTemplateWritesMessagesOfOneSkeleton(t *testing.T) {
	written := 0
	rapid.Check(t, func(t *rapid.T) {
		msg := drawMessage(t, 0)
		var s, other skeleton
		if !s.make(msg, skeletonFields()) {
			return
		}
		template := s.template(func(i int, _ token) (int, bool) { return i, true })
		own, others := make([][]byte, len(s.tokens)), make([][]byte, len(s.tokens))
		for i, token := range s.tokens {
			own[i], others[i] = token.content, bytes.Repeat(fmt.Append(nil, "n", token.number), 1+70*rapid.IntRange(0, 1).Draw(t, "long"))
			switch token.role {
			case nameToken:
				others[i] = bytes.Repeat(fmt.Append(nil, "n", token.number), 99)
			case timeToken, microTimeToken:
				others[i] = []byte("\x08\x80\x01\x10\x00")
			}
		}
		if got := template.write(own); !bytes.Equal(got, msg) {
			t.Fatalf("wrote %q\nof %q", got, msg)
		}
		if len(others) == 0 {
			return
		}
		written++
		changed := template.write(others)
		if !other.make(changed, skeletonFields()) || !bytes.Equal(other.bytes, s.bytes) || len(other.tokens) != len(others) {
			t.Fatalf("wrote %q\nlike %q", changed, msg)
		}
		for i, token := range other.tokens {
			if !bytes.Equal(token.content, others[i]) {
				t.Fatalf("content %d is %q, want %q", i, token.content, others[i])
			}
		}
	})
	if written == 0 {
		t.Error("no message had a token: nothing was compared")
	}
}

// TestTemplateKeepsLiterals checks that a template does not change content that is no token.
func TestTemplateKeepsLiterals(t *testing.T) {
	var msg []byte
	msg = protowire.AppendBytes(protowire.AppendTag(msg, 1, protowire.BytesType), []byte("a"))
	msg = protowire.AppendBytes(protowire.AppendTag(msg, 2, protowire.BytesType), []byte("b"))
	var s skeleton
	if !s.make(msg, skeletonFields()) {
		t.Fatal("no skeleton")
	}
	template := s.template(func(_ int, t token) (int, bool) { return 0, string(t.content) == "b" })
	want := bytes.Replace(msg, []byte("\x01b"), []byte("\x03new"), 1)
	if got := template.write([][]byte{[]byte("new")}); !bytes.Equal(got, want) {
		t.Errorf("wrote %q, want %q", got, want)
	}
}

// TestSkeletonRejects checks that make rejects lengths in non-minimal encodings, which no encoder writes, and too many
// names, which would take too much work.
func TestSkeletonRejects(t *testing.T) {
	many := []byte{}
	for i := range 1000 {
		many = protowire.AppendBytes(protowire.AppendTag(many, 1, protowire.BytesType), fmt.Append(nil, i))
	}
	for name, msg := range map[string][]byte{
		"cut short":   {1<<3 | 2, 5, 'a'},
		"long length": {1<<3 | 2, 0x81, 0, 'a'},
		"long tag":    {1<<3 | 2 | 0x80, 0, 1, 'a'},
		"other type":  {1 << 3, 1},
		"kept, other": {7 << 3, 1},
		"group":       {1<<3 | 3},
		"many names":  many,
	} {
		var s skeleton
		if s.make(msg, skeletonFields()) {
			t.Errorf("%s: got skeleton %q, want none", name, s.bytes)
		}
	}
}

// FuzzSkeleton checks that a message always has the same skeleton, and is not changed.
func FuzzSkeleton(f *testing.F) {
	f.Add([]byte{10, 1, 'a', 42, 3, 10, 1, 'a'})
	f.Fuzz(func(t *testing.T, msg []byte) {
		var s, again skeleton
		before := bytes.Clone(msg)
		if ok := s.make(msg, skeletonFields()); ok != again.make(msg, skeletonFields()) || ok && !bytes.Equal(s.bytes, again.bytes) {
			t.Error("two skeletons of one message")
		}
		if !bytes.Equal(msg, before) {
			t.Errorf("the message %q has become %q", before, msg)
		}
	})
}
