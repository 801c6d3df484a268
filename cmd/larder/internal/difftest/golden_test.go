package difftest

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"
)

// goldenFile has kube-apiserver's responses, compressed. Requests with the same response are grouped:
//
//	> a request, as JSON
//	> another
//	< the status and header of their response
//	= the body, if it is text that ends with a newline, or
//	" the body, quoted, or
//	# the digest of a body that is long, or
//	- for a body that cannot be compared, because it holds times in a binary form
var goldenFile = filepath.Join("testdata", "stock.golden.gz")

// goldenLimit is the length up to which a body is recorded completely.
const goldenLimit = 3000

// recordable returns the requests with recorded responses.
func recordable() []request {
	all := slices.Concat(fixedReads(), customReads(), aggregatedReads(), writes(), aggregatedWrites())
	return slices.DeleteFunc(all, func(r request) bool {
		return len(r.Body) > goldenLimit || !utf8.ValidString(r.Body)
	})
}

// outcome formats a response as in goldenFile.
func outcome(a response) string {
	if a.err != nil {
		return "! " + a.err.Error() + "\n"
	}
	head, err := json.Marshal(a.head)
	if err != nil {
		return "! " + err.Error() + "\n"
	}
	return fmt.Sprintf("< %d %s\n%s\n", a.code, head, outcomeBody(a))
}

func outcomeBody(a response) string {
	if bytes.HasPrefix(a.body, []byte("k8s\x00")) && a.code < http.StatusMultipleChoices {
		return "-"
	}
	body := string(normalize(a.body))
	text, ended := strings.CutSuffix(body, "\n")
	switch {
	case len(body) > goldenLimit:
		return fmt.Sprintf("# %d bytes, SHA-256 %x", len(body), sha256.Sum256([]byte(body)))
	case ended && strconv.CanBackquote(text):
		return "= " + text
	default:
		return `" ` + strconv.Quote(body)
	}
}

// record writes kube-apiserver's responses to file, except those that differ from Larder's: these differences are
// listed, or have failed the test.
func (f *fixture) record(t *testing.T, file string, all []request) {
	t.Helper()
	all = selected(all)
	outcomes, larder := f.responsesOf(f.stock, all), f.responsesOf(f.larder, all)
	var order []string
	groups := make(map[string][]request)
	for i, r := range all {
		if outcomes[i] != larder[i] {
			continue
		}
		if groups[outcomes[i]] == nil {
			order = append(order, outcomes[i])
		}
		groups[outcomes[i]] = append(groups[outcomes[i]], r)
	}
	var out bytes.Buffer
	for _, o := range order {
		for _, r := range groups[o] {
			raw, err := marshalPlain(r)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, "> %s\n", raw)
		}
		out.WriteString(o + "\n")
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(out.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, packed.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, group := range groups {
		count += len(group)
	}
	t.Logf("recorded %d of %d responses, %d of them distinct, %d bytes", count, len(all), len(order), packed.Len())
}

func marshalPlain(r request) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(r)
	return bytes.TrimSpace(out.Bytes()), err
}

// responsesOf sends requests to p and returns the responses as in goldenFile.
func (f *fixture) responsesOf(p *process, all []request) []string {
	outcomes := make([]string, len(all))
	var g errgroup.Group
	g.SetLimit(workers)
	for i, r := range all {
		g.Go(func() error {
			outcomes[i] = outcome(p.send(f.fillIn(r, 0)))
			return nil
		})
	}
	g.Wait()
	return outcomes
}

// replay compares Larder's responses with the recorded ones.
func (f *fixture) replay(t *testing.T, file string) {
	t.Helper()
	all, want := readGolden(t, file)
	got := f.responsesOf(f.larder, all)
	unlike := 0
	for i, r := range all {
		if got[i] == want[i] {
			continue
		}
		if unlike++; unlike <= 40 {
			t.Errorf("%s\nstock:\n%slarder:\n%s", r, want[i], got[i])
		}
	}
	t.Logf("%d recorded responses, %d differ", len(all), unlike)
	if unlike > 40 {
		t.Errorf("%d more responses differ", unlike-40)
	}
}

// readGolden returns the recorded requests and their outcomes.
func readGolden(t *testing.T, file string) (all []request, want []string) {
	t.Helper()
	packed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := gunzip(packed)
	if err != nil {
		t.Fatal(err)
	}
	for group := range strings.SplitSeq(strings.TrimSuffix(string(raw), "\n\n"), "\n\n") {
		rest := group
		for strings.HasPrefix(rest, "> ") {
			line, after, _ := strings.Cut(rest, "\n")
			var r request
			if err := json.Unmarshal([]byte(line[2:]), &r); err != nil {
				t.Fatalf("%s: %q: %v", file, line, err)
			}
			all, rest = append(all, r), after
		}
		for len(want) < len(all) {
			want = append(want, rest+"\n")
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s is empty", file)
	}
	return all, want
}
