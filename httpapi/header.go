package httpapi

import (
	"bytes"
	"strings"
)

// headerFacts is what one pass over a request's header block finds.
type headerFacts struct {
	// malformed says why the request must be refused, "" if it need not.
	malformed string
	// impersonates says that the request asks to act as somebody else.
	impersonates bool
	// foreign says that it may have credentials beside the Authorization header.
	foreign bool
}

// inspect reads a header block as it was sent. fasthttp takes names that are no
// tokens, folded lines and repeated headers of which there can be one, and reads
// them in its own way; whoever sends those means to be read in two ways.
func inspect(block []byte) headerFacts {
	var facts headerFacts
	var authorization, contentType, host bool
	for len(block) > 0 {
		line, rest, _ := bytes.Cut(block, []byte{'\n'})
		block = rest
		line = bytes.TrimSuffix(line, []byte{'\r'})
		if len(line) == 0 {
			continue
		}
		name, value, ok := bytes.Cut(line, []byte{':'})
		if !ok || !isToken(name) {
			facts.malformed = "malformed header name"
			return facts
		}
		switch {
		case foldEqual(name, "authorization"):
			facts.once(&authorization, "Authorization")
		case foldEqual(name, "content-type"):
			facts.once(&contentType, "Content-Type")
		case foldEqual(name, "host"):
			facts.once(&host, "Host")
		case foldEqual(name, "transfer-encoding"):
			if !foldEqual(bytes.Trim(value, " \t"), "chunked") {
				facts.malformed = "unsupported transfer encoding"
			}
		case len(name) > len(impersonatePrefix) && foldEqual(name[:len(impersonatePrefix)], impersonatePrefix):
			facts.impersonates = true
		case len(name) > len(remotePrefix) && foldEqual(name[:len(remotePrefix)], remotePrefix), foldEqual(name, "sec-websocket-protocol"):
			facts.foreign = true
		}
	}
	return facts
}

const (
	impersonatePrefix = "impersonate-"
	remotePrefix      = "x-remote-"
)

func (f *headerFacts) once(seen *bool, name string) {
	if *seen {
		f.malformed = "repeated " + name + " header"
	}
	*seen = true
}

// foldEqual reports whether name is lower in any case. lower is ASCII.
func foldEqual(name []byte, lower string) bool {
	return len(name) == len(lower) && strings.EqualFold(string(name), lower)
}

// isToken reports whether name is a token of RFC 9110.
func isToken(name []byte) bool {
	for _, c := range name {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return len(name) > 0
}
