package http1

import (
	"bytes"
	"errors"
	"iter"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/larder-io/larder/httpapi/exchange"
)

var (
	errRequestLine = errors.New("httpapi: malformed request line")
	errBareLine    = errors.New("httpapi: header line ends without CRLF")
)

// headerEnd finds the end of a header that arrives in pieces, looking at each byte once.
type headerEnd struct {
	line int // offset of the end of the first line; 0 until it is known
	seen int // no end begins before this offset
}

var (
	crlf2 = []byte("\r\n\r\n")
	lf2   = []byte("\n\n")
)

// find reports whether block, which begins as it did the last time, holds a whole header, as fasthttp
// accepts it: one that ends with an empty line behind CRLF, or right behind the first line. A malformed
// first line, or an empty line after a line that does not end with CRLF, is an error: the client may
// already be waiting for an answer.
func (e *headerEnd) find(block []byte) (bool, error) {
	if e.line == 0 {
		if bytes.HasSuffix(block, crlf2) && !bytes.Contains(block, lf2) {
			return true, nil // the usual case
		}
		n := bytes.IndexByte(block[e.seen:], '\n')
		if n < 0 {
			e.seen = len(block)
			return false, nil
		}
		e.line = e.seen + n
		if !isRequestLine(block[:e.line]) {
			return false, errRequestLine
		}
		e.seen = e.line
	}
	if bytes.HasPrefix(block[e.line+1:], crlf2[:2]) {
		return true, nil
	}
	for rest := block[e.seen:]; ; rest = block[e.seen:] {
		n := bytes.IndexByte(rest, '\n')
		switch {
		case n < 0:
			e.seen = len(block)
			return false, nil
		case bytes.HasPrefix(rest[n+1:], crlf2[:2]):
			if e.seen += n; block[e.seen-1] != '\r' {
				return false, errBareLine
			}
			return true, nil
		case bytes.HasPrefix(rest[n+1:], crlf2[1:2]):
			return false, errBareLine
		case len(rest)-n < len(crlf2)-1:
			e.seen += n // the next bytes decide
			return false, nil
		}
		e.seen += n + 1
	}
}

// endsFirstLine reports whether the first line of a whole header ends with CRLF. inspect checks the other lines.
func endsFirstLine(block []byte) bool {
	n := bytes.IndexByte(block, '\n')
	return n > 0 && block[n-1] == '\r'
}

// isRequestLine reports whether line could be a request line.
func isRequestLine(line []byte) bool {
	_, rest, _ := bytes.Cut(bytes.TrimSuffix(line, crlf2[:1]), []byte{' '})
	_, version, _ := bytes.Cut(rest, []byte{' '})
	return len(version) == len("HTTP/1.1") && bytes.HasPrefix(version, []byte("HTTP/"))
}

// blankLines returns the length of the empty lines that block begins with: some
// clients send one after a body.
func blankLines(block []byte) (n int) {
	for {
		switch rest := block[n:]; {
		case bytes.HasPrefix(rest, crlf2[1:2]):
			n++
		case bytes.HasPrefix(rest, crlf2[:2]):
			n += 2
		default:
			return n
		}
	}
}

// inspect checks a header block as the client sent it. fasthttp accepts names that are no tokens, folded
// lines, lines that end without CR, and repeats of headers that must be single. inspect refuses them,
// because two parsers could understand them differently. agent is the first User-Agent.
func inspect(block []byte) (facts exchange.Facts, agent []byte) {
	var authorization, contentType, host bool
	for len(block) > 0 {
		line, rest, _ := bytes.Cut(block, []byte{'\n'})
		block = rest
		line, ended := bytes.CutSuffix(line, []byte{'\r'})
		name, value, ok := bytes.Cut(line, []byte{':'})
		switch {
		case !ended: // a proxy may have taken it for a part of the line before
			facts.Refuse("malformed header line")
			return facts, agent
		case len(line) == 0:
		case !ok || !httpguts.ValidHeaderFieldName(string(name)):
			facts.Refuse("malformed header name")
			return facts, agent
		case foldEqual(name, "authorization"):
			facts.Single(&authorization, "Authorization")
		case foldEqual(name, "content-type"):
			facts.Single(&contentType, "Content-Type")
		case agent == nil && foldEqual(name, "user-agent"):
			agent = value
		case foldEqual(name, "host"):
			facts.Single(&host, "Host")
			if !httpguts.ValidHostHeader(string(bytes.Trim(value, " \t"))) {
				facts.Refuse("malformed Host header")
			}
		case foldEqual(name, "transfer-encoding"):
			if !foldEqual(bytes.Trim(value, " \t"), "chunked") {
				facts.Refuse("unsupported transfer encoding")
			}
		case len(name) > len(impersonatePrefix) && foldEqual(name[:len(impersonatePrefix)], impersonatePrefix):
			facts.Impersonates = true
		case len(name) > len(remotePrefix) && foldEqual(name[:len(remotePrefix)], remotePrefix), foldEqual(name, "sec-websocket-protocol"):
			facts.Foreign = true
		}
	}
	return facts, agent
}

// headerLines yields the names and values of a header block that inspect accepts, in
// the order in which they were sent.
func headerLines(block []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for rest := block; len(rest) > 0; { // bytes.Lines allocates more than all of this
			line, after, _ := bytes.Cut(rest, []byte{'\n'})
			rest = after
			name, value, ok := bytes.Cut(line, []byte{':'})
			if ok && !yield(name, bytes.Trim(value, " \t\r\n")) {
				return
			}
		}
	}
}

const (
	impersonatePrefix = "impersonate-"
	remotePrefix      = "x-remote-"
)

// foldEqual reports whether name is lower in any case. lower is ASCII.
func foldEqual(name []byte, lower string) bool {
	return len(name) == len(lower) && strings.EqualFold(string(name), lower)
}
