package storage

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"pgregory.net/rapid"
)

// FuzzContinue lists with arbitrary tokens. Tokens that upstream refuses must be refused, and a list must show only
// objects of its scope at the token's revision.
func FuzzContinue(f *testing.F) {
	for _, token := range continueTokens {
		f.Add(token, "a", true)
		f.Add(token, "", true)
	}
	f.Add("e30", "a", false)
	f.Fuzz(func(t *testing.T, token, namespace string, encode bool) {
		checkContinue(t, newContinued(t), token, namespace, encode)
	})
}

var continueTokens = []string{
	`{"v":"meta.k8s.io/v1","rv":2,"start":"a/one\u0000"}`,
	`{"v":"meta.k8s.io/v1","rv":3,"start":"/one\u0000"}`,
	`{"v":"meta.k8s.io/v1","rv":-1,"start":"/"}`,
	`{"v":"meta.k8s.io/v1","rv":1,"start":"../b/one"}`,
	`{"v":"meta.k8s.io/v1","rv":0,"start":"a"}`,
	`{"v":"meta.k8s.io/v1","rv":-9223372036854775808,"start":"z"}`,
	`{"v":"meta.k8s.io/v2","rv":1,"start":"a"}`,
	`{"v":"meta.k8s.io/v1","rv":1,"start":""}`, `{}`, `[`, ``, `null`,
}

// TestContinueTokens runs the checks of FuzzContinue without a fuzzer.
func TestContinueTokens(t *testing.T) {
	c := newContinued(t)
	piece := rapid.SampledFrom([]string{"a", "b", "/", "one", "two", ".", "..", `\u0000`, `\ud800`, "0", "1", "-", "9", `"`, "{", "}", ",", ":", "rv", "\x80"})
	rapid.Check(t, func(rt *rapid.T) {
		token := rapid.SampledFrom(continueTokens).Draw(rt, "token")
		for range rapid.IntRange(0, 4).Draw(rt, "changes") {
			at := rapid.IntRange(0, len(token)).Draw(rt, "at")
			to := min(len(token), at+rapid.IntRange(0, 2).Draw(rt, "length"))
			token = token[:at] + piece.Draw(rt, "piece") + token[to:]
		}
		checkContinue(rt, c, token, rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(rt, "namespace"), true)
	})
}

// continued is pods created one after the other, and the revision of each.
type continued struct {
	*fixture
	created map[string]int64
	last    int64
}

func newContinued(t *testing.T) *continued {
	t.Helper()
	c := &continued{fixture: newFixture(t, runtime.ContentTypeProtobuf), created: make(map[string]int64)}
	for _, key := range []string{"a/one", "a/two", "a-b/one", "b/one"} {
		namespace, name, _ := strings.Cut(key, "/")
		c.last = revisionOf(t, c.create(examplePod(namespace, name)).ResourceVersion)
		c.created[key] = c.last
	}
	return c
}

func checkContinue(t interface {
	Fatalf(string, ...any)
}, c *continued, token, namespace string, encode bool) {
	if encode {
		token = base64.RawURLEncoding.EncodeToString([]byte(token))
	}
	if token == "" || strings.Contains(namespace, "/") || namespace == "." || namespace == ".." {
		return // no token, and namespaces that no path has
	}
	prefix := "/pods/"
	if namespace != "" {
		prefix += namespace + "/"
	}
	from, revision, refused := storage.DecodeContinue(token, prefix)
	if revision > c.last {
		return // is waited for
	}
	listing, err := c.list(ListRequest{Scope: Scope{Namespace: namespace}, Continue: token})
	if refused != nil {
		if !apierrors.IsBadRequest(err) {
			t.Fatalf("token %q: got error %v, upstream %v", token, err, refused)
		}
		return
	}
	if err != nil {
		t.Fatalf("token %q: %v", token, err)
	}
	var want []string
	for key, created := range c.created {
		if full := "/pods/" + key; strings.HasPrefix(full, prefix) && full >= from && (revision < 0 || created <= revision) {
			want = append(want, key)
		}
	}
	slices.Sort(want)
	var got []string
	for _, o := range listing.Objects {
		got = append(got, o.Key())
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("from %q at %d in %q: %q, want %q", from, revision, namespace, got, want)
	}
}
