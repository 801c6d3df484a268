package writes

import (
	"sync"
	"unicode/utf8"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/exchange"
)

// What the texts of all Warning headers of an answer may have in runes, and what one text may have
// once there is more (apiserver pkg/endpoints/filters/warning.go).
const (
	mostWarnings    = 4 << 10
	mostWhenCutting = 256
)

// recorder collects the warnings of one answer: each text once, and all cut if they are long. It
// implements warning.Recorder, and may be used by any number of goroutines.
type recorder struct {
	mu      sync.Mutex // guards what follows
	closed  bool       // the answer is made
	known   []warned
	headers []string
	runes   int  // of the texts in headers
	cutting bool // long texts are cut
}

// warned is one warning.
type warned struct{ agent, text string }

// AddWarning implements warning.Recorder.
func (r *recorder) AddWarning(agent, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text == "" || r.closed || r.cutting && r.runes >= mostWarnings {
		return
	}
	for _, w := range r.known {
		if w.text == text {
			return
		}
	}
	r.known = append(r.known, warned{agent, text})
	if !r.cutting && r.runes+utf8.RuneCountInString(text) > mostWarnings {
		klog.InfoS("The warnings of a request are too long, and are cut")
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
	if err != nil { // it cannot be sent
		return
	}
	r.runes += utf8.RuneCountInString(w.text)
	r.headers = append(r.headers, header)
}

// close adds the warnings to the answer. What comes later is lost.
func (r *recorder) close(to *exchange.Response) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, header := range r.headers {
		to.Add("Warning", header)
	}
}
