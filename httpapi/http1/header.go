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

// headerEnd finds the end of a header that arrives in pieces. It examines each byte once.
type headerEnd struct {
	line int // offset of the line that has not ended
	seen int // the line does not end before this offset
}

// find reports whether block, which begins with the block of the last call, has a whole header: lines that end with
// CRLF, the last of them empty. fasthttp also accepts lines that end with only LF, which a proxy may have taken for a
// part of another line. A malformed line is an error at once, because the client may already be waiting for a response.
func (e *headerEnd) find(block []byte) (bool, error) {
	for {
		n := bytes.IndexByte(block[e.seen:], '\n')
		if n < 0 {
			e.seen = len(block)
			return false, nil
		}
		line, ended := bytes.CutSuffix(block[e.line:e.seen+n], []byte{'\r'})
		switch {
		case e.line == 0 && !isRequestLine(line):
			return false, errRequestLine
		case !ended:
			return false, errBareLine
		case len(line) == 0:
			return true, nil
		}
		e.seen += n + 1
		e.line = e.seen
	}
}

// isRequestLine reports whether line could be a request line.
func isRequestLine(line []byte) bool {
	_, rest, _ := bytes.Cut(line, []byte{' '})
	_, version, _ := bytes.Cut(rest, []byte{' '})
	return len(version) == len("HTTP/1.1") && bytes.HasPrefix(version, []byte("HTTP/"))
}

// blankLines returns the length of the empty lines that block begins with: some
// clients send one after a body.
func blankLines(block []byte) (n int) {
	for {
		switch rest := block[n:]; {
		case bytes.HasPrefix(rest, []byte("\n")):
			n++
		case bytes.HasPrefix(rest, []byte("\r\n")):
			n += 2
		default:
			return n
		}
	}
}

// inspect checks a header block as the client sent it. It rejects names that are not tokens, folded lines, and repeated
// headers that must be unique, because two parsers could understand them differently. fasthttp accepts them. agent is
// the first User-Agent.
func inspect(block []byte) (facts exchange.Facts, agent []byte) {
	var authorization, contentType, host bool
	for len(block) > 0 {
		line, rest, _ := bytes.Cut(block, []byte{'\n'})
		block = rest
		line = bytes.TrimSuffix(line, []byte{'\r'})
		name, value, ok := bytes.Cut(line, []byte{':'})
		switch {
		case len(line) == 0:
		case !ok || !httpguts.ValidHeaderFieldName(string(name)):
			facts.Reject("malformed header name")
			return facts, agent
		case foldEqual(name, "authorization"):
			facts.RejectRepeated(&authorization, "Authorization")
		case foldEqual(name, "content-type"):
			facts.RejectRepeated(&contentType, "Content-Type")
		case agent == nil && foldEqual(name, "user-agent"):
			agent = value
		case foldEqual(name, "host"):
			facts.RejectRepeated(&host, "Host")
			if !httpguts.ValidHostHeader(string(bytes.Trim(value, " \t"))) {
				facts.Reject("malformed Host header")
			}
		case foldEqual(name, "transfer-encoding"):
			if !foldEqual(bytes.Trim(value, " \t"), "chunked") {
				facts.Reject("unsupported transfer encoding")
			}
		case foldEqual(name[:min(len(name), len(impersonatePrefix))], impersonatePrefix):
			facts.Impersonates = true
		case foldEqual(name[:min(len(name), len(remotePrefix))], remotePrefix), foldEqual(name, "sec-websocket-protocol"):
			facts.OtherCredentials = true
		}
	}
	return facts, agent
}

// headerLines yields the names and values of a header block that inspect accepts, in
// the order in which they were sent.
func headerLines(block []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for rest := block; len(rest) > 0; { // bytes.Lines allocates
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

// foldEqual reports whether name equals lower, regardless of case. lower is ASCII.
func foldEqual(name []byte, lower string) bool {
	return len(name) == len(lower) && strings.EqualFold(string(name), lower)
}
