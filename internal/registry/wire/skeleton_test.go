package wire_test

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/internal/registry/wire"
)

// skeletonFields is a message of one field of each role, itself nested in field 5.
func skeletonFields() *wire.Fields {
	inner := wire.Fields{1: {Role: wire.Name}, 2: {Role: wire.Opaque}, 3: {Role: wire.Time}, 4: {Role: wire.MicroTime}, 7: {Role: wire.Kept}}
	outer := inner
	outer[5] = &wire.Layout{Role: wire.Message, Fields: inner}
	return &outer
}

// microsecond is a time with a fraction of a second.
const microsecond = "\x08\x01\x10\xe8\x07"

// model describes in words what a Skeleton contains.
func model(msg []byte, fields *wire.Fields, names map[string]int) string {
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
		switch role := fields[number].Role; {
		case role == wire.Message:
			fmt.Fprintf(&out, "{%s} ", model(content, &fields[number].Fields, names))
		case role == wire.Name && len(content) > 0:
			if _, known := names[string(content)]; !known {
				names[string(content)] = len(names)
			}
			fmt.Fprintf(&out, "name%d ", names[string(content)])
		case role == wire.Opaque && len(content) > 0:
			out.WriteString("opaque ")
		case role == wire.Time && len(content) == 4 && content[1] > 0 && content[3] == 0: // whole seconds
			out.WriteString("time ")
		case role == wire.MicroTime && (len(content) == 4 && content[1] > 0 && content[3] == 0 || string(content) == microsecond):
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
		var s wire.Skeleton
		if !s.Make(msg, skeletonFields()) {
			return // bytes in the place of a message may be none
		}
		want := model(msg, skeletonFields(), make(map[string]int))
		got := string(s.Bytes)
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
		t.Error("no two messages had the same skeleton")
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
		var own wire.Skeleton
		has := own.Make(msg, skeletonFields())
		p, ok := wire.NewPattern(msg, skeletonFields())
		if ok != has {
			t.Fatalf("%q has a skeleton: %t, a pattern: %t", msg, has, ok)
		}
		if !ok {
			return
		}
		all = append(all[max(0, len(all)-200):], msg)
		for _, other := range all {
			var want, got wire.Skeleton
			want.Make(other, skeletonFields())
			same := bytes.Equal(want.Bytes, own.Bytes)
			if p.Match(other, &got) != same {
				t.Fatalf("%q matches the pattern of %q: %t", other, msg, !same)
			}
			if !same {
				others++
				continue
			}
			matched++
			if !slices.EqualFunc(got.Tokens, want.Tokens, func(a, b wire.Token) bool {
				return bytes.Equal(a.Content, b.Content) && a.Role == b.Role && a.Number == b.Number
			}) {
				t.Fatalf("%q has tokens %+v, want %+v", other, got.Tokens, want.Tokens)
			}
		}
		for n := range msg { // truncated messages
			var got, want wire.Skeleton
			same := want.Make(msg[:n], skeletonFields()) && bytes.Equal(want.Bytes, own.Bytes)
			if p.Match(msg[:n:n], &got) != same {
				t.Fatalf("%q matches the pattern of %q: %t", msg[:n], msg, !same)
			}
		}
	})
	if matched == 0 || others == 0 {
		t.Errorf("%d messages matched, %d did not", matched, others)
	}
}

func TestSkeletonFinds(t *testing.T) {
	var msg []byte
	msg = protowire.AppendBytes(protowire.AppendTag(msg, 1, protowire.BytesType), []byte("a"))
	msg = protowire.AppendBytes(protowire.AppendTag(msg, 2, protowire.BytesType), []byte("b"))
	msg = protowire.AppendBytes(protowire.AppendTag(msg, 2, protowire.BytesType), nil)
	msg = protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), msg)
	var s wire.Skeleton
	want := []wire.Token{{Content: []byte("a"), Role: wire.Name}, {Content: []byte("b"), Role: wire.Opaque}}
	if !s.Make(msg, skeletonFields()) || !reflect.DeepEqual(s.Tokens, want) {
		t.Errorf("found %+v", s.Tokens)
	}
}

// TestTemplateWritesMessagesOfOneSkeleton checks that a Template of a message writes that message, and with other
// contents a message of the same skeleton that has those contents.
func TestTemplateWritesMessagesOfOneSkeleton(t *testing.T) {
	written := 0
	rapid.Check(t, func(t *rapid.T) {
		msg := drawMessage(t, 0)
		var s, other wire.Skeleton
		made := s.Make(msg, skeletonFields())
		next := -1
		template, ok := wire.NewTemplate(msg, skeletonFields(), func([]byte, wire.Role) (int, bool) { next++; return next, true })
		if ok != made {
			t.Fatalf("template %t, skeleton %t", ok, made)
		}
		if !ok {
			return
		}
		own, others := make([][]byte, len(s.Tokens)), make([][]byte, len(s.Tokens))
		for i, token := range s.Tokens {
			own[i], others[i] = token.Content, bytes.Repeat(fmt.Append(nil, "n", token.Number), 1+70*rapid.IntRange(0, 1).Draw(t, "long"))
			switch token.Role {
			case wire.Name:
				others[i] = bytes.Repeat(fmt.Append(nil, "n", token.Number), 99)
			case wire.Time, wire.MicroTime:
				others[i] = []byte("\x08\x80\x01\x10\x00")
			}
		}
		if got := template.Write(own); !bytes.Equal(got, msg) {
			t.Fatalf("wrote %q\nof %q", got, msg)
		}
		if len(others) == 0 {
			return
		}
		written++
		changed := template.Write(others)
		if !other.Make(changed, skeletonFields()) || !bytes.Equal(other.Bytes, s.Bytes) || len(other.Tokens) != len(others) {
			t.Fatalf("wrote %q\nlike %q", changed, msg)
		}
		for i, token := range other.Tokens {
			if !bytes.Equal(token.Content, others[i]) {
				t.Fatalf("content %d is %q, want %q", i, token.Content, others[i])
			}
		}
	})
	if written == 0 {
		t.Error("no message had a token")
	}
}

// TestTemplateKeepsWhatHasNoNumber checks that content without a number does not change.
func TestTemplateKeepsWhatHasNoNumber(t *testing.T) {
	var msg []byte
	msg = protowire.AppendBytes(protowire.AppendTag(msg, 1, protowire.BytesType), []byte("a"))
	msg = protowire.AppendBytes(protowire.AppendTag(msg, 2, protowire.BytesType), []byte("b"))
	template, ok := wire.NewTemplate(msg, skeletonFields(), func(content []byte, _ wire.Role) (int, bool) { return 0, string(content) == "b" })
	if !ok {
		t.Fatal("no template")
	}
	want := bytes.Replace(msg, []byte("\x01b"), []byte("\x03new"), 1)
	if got := template.Write([][]byte{[]byte("new")}); !bytes.Equal(got, want) {
		t.Errorf("wrote %q, want %q", got, want)
	}
}

// TestSkeletonRefuses checks that Skeleton refuses lengths in non-minimal encodings, which no encoder writes, and too
// many names, which would take too much work.
func TestSkeletonRefuses(t *testing.T) {
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
		var s wire.Skeleton
		if s.Make(msg, skeletonFields()) {
			t.Errorf("%s: skeleton %q", name, s.Bytes)
		}
	}
}

func FuzzSkeleton(f *testing.F) {
	f.Add([]byte{10, 1, 'a', 42, 3, 10, 1, 'a'})
	f.Fuzz(func(t *testing.T, msg []byte) {
		var s, again wire.Skeleton
		before := bytes.Clone(msg)
		if ok := s.Make(msg, skeletonFields()); ok != again.Make(msg, skeletonFields()) || ok && !bytes.Equal(s.Bytes, again.Bytes) {
			t.Error("two skeletons of one message")
		}
		same(t, "input", msg, before)
	})
}
