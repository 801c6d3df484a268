package openapi

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// TestFastDocumentsAreNotMixedUp checks that documents of different sizes that many goroutines build and read
// concurrently, in reused memory, are correct, whole and in part.
func TestFastDocumentsAreNotMixedUp(t *testing.T) {
	s := &openAPIv3{builtIn: make(map[string]*document)}
	texts := make(map[string]string)
	for i := range 8 {
		name, text := fmt.Sprint("d", i), `{"a":"`+strings.Repeat(fmt.Sprint(i, "-"), 1+i*20_000)+`"}`
		texts[name] = text
		s.builtIn[name] = newDocument(inV3, func(w io.Writer) error {
			for _, part := range []string{text[:5], text[5:]} { // in pieces, as documents are written
				if _, err := io.WriteString(w, part); err != nil {
					return err
				}
			}
			return nil
		})
	}
	var all sync.WaitGroup
	for range 4 {
		for name, text := range texts {
			all.Go(func() {
				for range 5 {
					whole := answerOf(http.HandlerFunc(s.serveDocument), http.MethodGet, "/openapi/v3/"+name, nil)
					if whole.Body.String() != text || whole.Header().Get("Content-Length") != strconv.Itoa(len(text)) {
						t.Errorf("%s: %d bytes of %d", name, whole.Body.Len(), len(text))
					}
					part := answerOf(http.HandlerFunc(s.serveDocument), http.MethodGet, "/openapi/v3/"+name, http.Header{"Range": {"bytes=2-7"}})
					if part.Code != http.StatusPartialContent || part.Body.String() != text[2:8] {
						t.Errorf("%s: a part: %d %q", name, part.Code, part.Body)
					}
				}
			})
		}
	}
	all.Wait()
}
