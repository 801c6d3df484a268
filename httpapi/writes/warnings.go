package writes

import (
	"sync"
	"unicode/utf8"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/exchange"
)

// Limits of Warning headers (apiserver pkg/endpoints/filters/warning.go).
const (
	mostWarnings    = 4 << 10 // runes in all texts of a response; beyond that, long texts are truncated
	mostWhenCutting = 256     // runes in a truncated text
)

// recorder collects the warnings of one response and drops duplicates. It implements
// warning.Recorder and is safe for concurrent use.
type recorder struct {
	mu      sync.Mutex // guards what follows
	closed  bool       // the response has its headers
	known   []warned
	texts   map[string]bool // of known: there may be very many that no header takes
	headers []string
	runes   int  // of the texts in headers
	cutting bool // long texts are truncated
}

// warned is a recorded warning.
type warned struct{ agent, text string }

func (r *recorder) AddWarning(agent, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text == "" || r.closed || r.cutting && r.runes >= mostWarnings {
		return
	}
	if r.texts[text] {
		return
	}
	if r.texts == nil {
		r.texts = make(map[string]bool)
	}
	r.texts[text] = true
	r.known = append(r.known, warned{agent, text})
	if !r.cutting && r.runes+utf8.RuneCountInString(text) > mostWarnings {
		if _, err := utilnet.NewWarningHeader(299, agent, text); err != nil { // not valid in a header
			return
		}
		klog.InfoS("Warnings exceed the maximum size and are truncated")
		r.cutting, r.headers, r.runes = true, nil, 0
		for _, w := range r.known {
			r.addLocked(w)
		}
		return
	}
	r.addLocked(warned{agent, text})
}

// addLocked adds a header.
func (r *recorder) addLocked(w warned) {
	if r.cutting && utf8.RuneCountInString(w.text) > mostWhenCutting {
		w.text = string([]rune(w.text)[:mostWhenCutting])
	}
	header, err := utilnet.NewWarningHeader(299, w.agent, w.text)
	if err != nil { // not valid in a header
		return
	}
	r.runes += utf8.RuneCountInString(w.text)
	r.headers = append(r.headers, header)
}

// close adds the headers to the response. Later warnings are discarded.
func (r *recorder) close(to *exchange.Response) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, header := range r.headers {
		to.Add("Warning", header)
	}
}
