package difftest

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// request is sent to both servers. In Path, {NAME} stands for a revision, and {life} for the seconds that a watch
// lasts.
type request struct {
	Method, Path string
	Accept       string `json:",omitempty"`
	Type         string `json:",omitempty"` // of Body
	Body         string `json:",omitempty"`
	User         string `json:",omitempty"` // the user whose token is sent: "" is the administrator, "-" is none
	As           string `json:",omitempty"` // the impersonated user: see setAs
	Encoding     string `json:",omitempty"` // accepted
	Agent        string `json:",omitempty"`
}

func (r request) String() string {
	s := r.Method + " " + r.Path
	for _, part := range [][2]string{
		{"accept", r.Accept}, {"type", r.Type}, {"body", shorten(r.Body)}, {"user", r.User}, {"as", r.As}, {"encoding", r.Encoding}, {"agent", r.Agent},
	} {
		if part[1] != "" {
			s += " " + part[0] + "=" + fmt.Sprintf("%q", part[1])
		}
	}
	return s
}

func shorten(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

func (r request) reads() bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// response is a server's response.
type response struct {
	code int
	head http.Header // headers that are compared
	body []byte
	err  error
}

// heads are the names of the headers that are compared.
var heads = []string{
	"Content-Type", "Cache-Control", "Retry-After", "Warning", "Vary", "Content-Encoding",
	"Allow", "Www-Authenticate", "X-Content-Type-Options", "Location", "Transfer-Encoding",
}

// newClient returns a client for one version of HTTP, a value of -protocol. It requests no compression by itself, and
// follows no redirects.
func newClient(version string) *http.Client {
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableCompression: true, MaxIdleConnsPerHost: watchers,
		Protocols: new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(version == "h1")
	transport.Protocols.SetHTTP2(version == "h2")
	return &http.Client{
		Timeout:       time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     transport,
	}
}

// open sends a request and returns the response with an unread body.
func (p *process) open(r request) (*http.Response, error) {
	var body io.Reader
	if r.Body != "" {
		body = strings.NewReader(r.Body)
	}
	q, err := http.NewRequest(r.Method, p.url+r.Path, body)
	if err != nil {
		return nil, err
	}
	set := func(name, value string) {
		if value != "" {
			q.Header.Set(name, value)
		}
	}
	switch r.User {
	case "":
		set("Authorization", "Bearer admin")
	case "-":
	default:
		set("Authorization", "Bearer "+r.User)
	}
	setAs(q.Header, r.As)
	set("Accept", r.Accept)
	set("Content-Type", r.Type)
	set("Accept-Encoding", r.Encoding)
	set("User-Agent", cmp.Or(r.Agent, "Go-http-client/1.1")) // in HTTP/2, too
	return p.client.Do(q)
}

func (p *process) send(r request) response {
	resp, err := p.open(r)
	if err != nil {
		return response{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	a := response{code: resp.StatusCode, head: make(http.Header), body: body, err: err}
	for _, name := range heads {
		if values := resp.Header.Values(name); len(values) > 0 {
			a.head[name] = values
		}
	}
	switch open := resp.ProtoMajor == 2 && resp.ContentLength < 0 && r.Method != http.MethodHead; {
	case !watchPath.MatchString(r.Path):
	case len(resp.TransferEncoding) > 0:
		a.head["Transfer-Encoding"] = resp.TransferEncoding
	case open: // as in HTTP/1.1
		a.head["Transfer-Encoding"] = []string{"chunked"}
	}
	if a.head.Get("Content-Encoding") == "gzip" {
		a.body, a.err = gunzip(body)
	}
	if watchPath.MatchString(r.Path) {
		a.body = withoutPeriodicBookmarks(a.head.Get("Content-Type"), a.body)
	}
	for _, port := range p.ports {
		a.body = bytes.ReplaceAll(a.body, []byte(port), []byte(":PORT"))
	}
	return a
}

func gunzip(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// watchPath matches the paths of watches. Only their framing is compared, because a server may send a list in chunks or
// with its length.
var watchPath = regexp.MustCompile(`/watch/|[?&]watch(=|=1|=true|=yes)?(&|$)`)

const endOfInitial = "k8s.io/initial-events-end"

// withoutPeriodicBookmarks drops the bookmarks that a server sends periodically
// (apiserver pkg/storage/cacher/cache_watcher.go).
func withoutPeriodicBookmarks(mediaType string, body []byte) []byte {
	frames := splitLines
	if strings.Contains(mediaType, "protobuf") {
		frames = splitFrames
	}
	var kept []byte
	for _, frame := range frames(body) {
		if bytes.Contains(frame[:min(len(frame), 40)], []byte("BOOKMARK")) && !bytes.Contains(frame, []byte(endOfInitial)) {
			continue
		}
		kept = append(kept, frame...)
	}
	return kept
}

func splitLines(body []byte) [][]byte { return bytes.SplitAfter(body, []byte("\n")) }

// splitFrames cuts a stream into frames that begin with their length in four bytes.
func splitFrames(body []byte) [][]byte {
	var frames [][]byte
	for len(body) >= 4 {
		n := 4 + int(body[0])<<24 + int(body[1])<<16 + int(body[2])<<8 + int(body[3])
		n = min(max(n, 4), len(body))
		frames = append(frames, body[:n])
		body = body[n:]
	}
	return append(frames, body)
}

// agePattern matches the ages in Table cells, in JSON and YAML, as apimachinery pkg/util/duration writes them. It does
// not match <unknown>, the age of an object without a time.
var agePattern = regexp.MustCompile(`(?m)"(?:` + age + `)"|^( *- )(?:` + age + `)$`)

const age = `(?:\d+[smhdy])+|<invalid>|\\u003cinvalid\\u003e`

func withoutAges(body []byte) []byte { return agePattern.ReplaceAll(body, []byte(`${1}"AGE"`)) }

// volatile lists the values that differ between equal writes, and their replacements.
var volatile = []struct {
	pattern *regexp.Regexp
	to      string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), `UID`},
	{regexp.MustCompile(`(resourceVersion\\*": ?\\*")\d+(\\*")`), `${1}REV${2}`},
	{regexp.MustCompile(`(resourceVersion: ")\d+(")`), `${1}REV${2}`},
	{regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), `TIME`},
	{regexp.MustCompile(`current: \d+`), `current: REV`},
	{regexp.MustCompile(`(too old resource version: \d+) \(\d+\)`), `$1 (REV)`},
	{regexp.MustCompile(`\d+\.\d+\.\d+\.\d+:PORT`), `ADDRESS`},
	{regexp.MustCompile(`in record \(\d+\)`), `in record (REV)`},
	{regexp.MustCompile(`"(kid|x|y)":"[\w-]{43}"`), `"$1":"KEY"`},
	{regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`), `kube-api-access-RANDOM`},
}

var tokenPattern = regexp.MustCompile(`("?continue"?: ?"?)([A-Za-z0-9_-]{20,})`)

var tokenRevision = regexp.MustCompile(`"rv":[1-9]\d*`)

// normalize returns body with volatile values replaced. Continue tokens are decoded.
func normalize(body []byte) []byte {
	body = tokenPattern.ReplaceAllFunc(body, func(match []byte) []byte {
		parts := tokenPattern.FindSubmatch(match)
		token, err := base64.RawURLEncoding.DecodeString(string(parts[2]))
		if err != nil {
			return match
		}
		return slices.Concat(parts[1], tokenRevision.ReplaceAll(token, []byte(`"rv":REV`)))
	})
	body = withoutAges(body)
	for _, v := range volatile {
		body = v.pattern.ReplaceAll(body, []byte(v.to))
	}
	return body
}

// compare describes the differences of two responses; "" means none.
func compare(stock, larder response) string {
	var out []string
	if stock.err != nil || larder.err != nil {
		out = append(out, fmt.Sprintf("error: kube-apiserver %v, larder %v", stock.err, larder.err))
	}
	if stock.code != larder.code {
		out = append(out, fmt.Sprintf("status: kube-apiserver %d, larder %d", stock.code, larder.code))
	}
	for _, name := range heads {
		if a, b := stock.head[name], larder.head[name]; !slices.Equal(a, b) {
			out = append(out, fmt.Sprintf("%s: kube-apiserver %q, larder %q", name, a, b))
		}
	}
	if a, b := stock.body, larder.body; !bytes.Equal(a, b) {
		at := 0
		for at < len(a) && at < len(b) && a[at] == b[at] {
			at++
		}
		cut := func(s []byte) []byte { return s[min(max(0, at-80), len(s)):min(len(s), at+160)] }
		out = append(out, fmt.Sprintf("body: at byte %d of %d and %d\n    kube-apiserver %q\n    larder         %q", at, len(a), len(b), cut(a), cut(b)))
	}
	return strings.Join(out, "\n  ")
}
