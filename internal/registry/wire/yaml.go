package wire

import (
	"bytes"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// yamlPiece is the minimum size of JSON for which a list is converted to YAML in pieces, and of a piece. The conversion
// takes about a hundred times as much memory.
const yamlPiece = 32 << 10

// yamlWriter is the result of NewYAMLWriter.
type yamlWriter struct {
	to   io.Writer
	size int // yamlPiece, except in tests

	// json is not converted. Once a list has begun, it has a 0 for the converted items, and from is behind this 0.
	json []byte
	from int
	// before and after are the YAML around the items. before includes that of the 0.
	before, after []byte
	lines         int // in the converted items
}

// NewYAMLWriter returns a writer that converts the compact JSON of a list or table to YAML, as upstream's YAML serializer
// does. It converts a few items or rows at a time and writes them to w, so that only these are in memory. The output is
// complete after Close. If w is io.Discard, only what may cause an error is converted.
func NewYAMLWriter(w io.Writer) io.WriteCloser { return &yamlWriter{to: w, size: yamlPiece} }

// Write implements io.Writer.
func (y *yamlWriter) Write(p []byte) (n int, err error) {
	y.json = append(y.json, p...)
	if len(y.json) >= y.size && y.from == 0 {
		err = y.begin()
	}
	if len(y.json) < y.size || err != nil {
		return len(p), err
	}
	stop := y.from // of the last complete item
	for y.json[stop] == ',' {
		end := skipValue(y.json, stop+1)
		if end < 0 || end == len(y.json) {
			break
		}
		stop = end
	}
	items := slices.Concat(y.json[:stop], []byte("]}"))
	if y.to != io.Discard || !convertible(items) {
		var out []byte
		if out, err = y.convert(items); err == nil {
			_, err = y.to.Write(out[len(y.before) : len(out)-len(y.after)])
		}
	}
	y.json = slices.Delete(y.json, y.from, stop)
	return len(p), err
}

// begin finds the list in json, or leaves all of it to Close.
func (y *yamlWriter) begin() error {
	for _, name := range []string{"items", "rows"} {
		open, key := `"`+name+`":[`, "\n"+name+":\n"
		head, _, found := bytes.Cut(y.json, []byte(open+"{"))
		frame, err := yaml.JSONToYAML(slices.Concat(head, []byte(open+"0]}")))
		before, after, same := bytes.Cut(frame, []byte(key+"- 0\n")) // only members of the list begin at the start of a line
		if found && err == nil && same {
			y.from, y.before, y.after = len(head)+len(open)+1, frame[:len(frame)-len(after)], after
			y.json = slices.Insert(y.json, y.from-1, '0', ',')
			_, err = y.to.Write(frame[:len(before)+len(key)])
			return err
		}
	}
	y.size = math.MaxInt
	return nil
}

// convert returns the YAML of data, which has a 0 for the converted items. An error may name a line, as of the whole list:
// the character U+0085 begins one.
func (y *yamlWriter) convert(data []byte) ([]byte, error) {
	const line = "\u0085"
	out, err := yaml.JSONToYAML(data)
	if err != nil && y.lines > 0 {
		lines := `"` + strings.Repeat(line, y.lines) + `"`
		_, err = yaml.JSONToYAML(slices.Concat(data[:y.from-1], []byte(lines), data[y.from:]))
	}
	y.lines += bytes.Count(data[y.from:], []byte(line))
	return out, err
}

// convertible reports whether the conversion of data, the JSON of an encoder, certainly has no error. It may have one for
// names of more than 1024 characters, line breaks and characters that YAML does not have, and values in 10,000 others.
// Raw JSON in an object may also have invalid UTF-8 and escapes that YAML does not have.
func convertible(data []byte) bool {
	for at := 0; at < len(data); at++ {
		if start := at; data[at] == '"' {
			if at = skipString(data, at); at < 0 || at-start > 1000 && data[at] == ':' {
				return false
			}
		}
	}
	for _, escape := range []string{`\/`, `\ud`, `\uD`} { // the last two may be surrogates
		if bytes.Contains(data, []byte(escape)) {
			return false
		}
	}
	odd := func(r rune) bool {
		return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || r == '\ufeff' || r >= utf8.RuneError && r <= '\uffff'
	}
	return !bytes.ContainsFunc(data, odd) && bytes.Count(data, []byte("{"))+bytes.Count(data, []byte("[")) < 9000
}

// Close writes the rest.
func (y *yamlWriter) Close() error {
	out, err := y.convert(y.json)
	if err != nil {
		return err
	}
	rest, ok := bytes.CutPrefix(out, y.before)
	if !ok {
		return errors.New("wire: a list has members in another order in YAML than in JSON")
	}
	_, err = y.to.Write(rest)
	return err
}
