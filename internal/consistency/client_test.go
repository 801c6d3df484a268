package consistency

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// collection is where the objects are; prefix is where etcd has them.
const (
	collection = "/api/v1/namespaces/default/configmaps"
	prefix     = "/registry/configmaps/default/"
)

// requestTimeout bounds requests but watches, while things fail.
const requestTimeout = 4 * time.Second

type request struct {
	method, path, body, kind string
	accept                   string        // "" is JSON
	timeout                  time.Duration // 0 is requestTimeout
}

type answer struct {
	code int
	body []byte
	err  error
}

// ask sends a request and reads the answer. code is 0 if there was none.
func (r *replica) ask(q request) answer {
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(q.timeout, requestTimeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, q.method, r.url+q.path, strings.NewReader(q.body))
	if err != nil {
		return answer{err: err}
	}
	if q.kind == "" {
		q.kind = "application/json"
	}
	req.Header.Set("Content-Type", q.kind)
	req.Header.Set("Accept", cmp.Or(q.accept, "application/json"))
	resp, err := r.client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{err: err}
	}
	return answer{code: resp.StatusCode, body: body}
}

// meta is what is looked at of an object's or a list's metadata.
type meta struct {
	Name            string            `json:"name"`
	ResourceVersion string            `json:"resourceVersion"`
	Continue        string            `json:"continue"`
	Remaining       *int              `json:"remainingItemCount"`
	Labels          map[string]string `json:"labels"`
	Annotations     map[string]string `json:"annotations"`
}

func (m meta) revision() int64 {
	n, _ := strconv.ParseInt(m.ResourceVersion, 10, 64)
	return n
}

// object is a ConfigMap, or the Status that came in its place.
type object struct {
	Kind     string            `json:"kind"`
	Metadata meta              `json:"metadata"`
	Data     map[string]string `json:"data"`
	Code     int               `json:"code"`
	Message  string            `json:"message"`
}

type list struct {
	Metadata meta     `json:"metadata"`
	Items    []object `json:"items"`
}

func decode[T any](body []byte) (T, error) {
	var into T
	if err := json.Unmarshal(body, &into); err != nil {
		return into, fmt.Errorf("%w in %.200s", err, body)
	}
	return into, nil
}

// payload is the text that one write, and no other, puts into an object. It holds
// the group too, which is the object's label, so that the stored bytes say it. All
// payloads are of one length.
type payload struct {
	id    int64
	group string
}

func (p payload) String() string { return fmt.Sprintf("<%08d:%s>", p.id, p.group) }

// json is the object with the payload; revision "" sets no precondition.
func (p payload) json(name, revision string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"resourceVersion":%q,"labels":{"g":%q}},"data":{"p":%q}}`, name, revision, p.group, p)
}

var payloads = regexp.MustCompile(`<(\d+):([a-z])>`)

// readPayload finds the payload in what holds it.
func readPayload[T string | []byte](in T) (payload, bool) {
	found := payloads.FindStringSubmatch(string(in))
	if found == nil {
		return payload{}, false
	}
	id, _ := strconv.ParseInt(found[1], 10, 64)
	return payload{id, found[2]}, true
}
