package consistency

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// collection is the path of the objects, prefix the prefix of their keys in etcd.
const (
	collection = "/api/v1/namespaces/default/configmaps"
	prefix     = "/registry/configmaps/default/"
)

// requestTimeout limits requests other than watches while faults are injected.
const requestTimeout = 4 * time.Second

type request struct {
	method, path, body, kind string
	accept                   string        // "" means JSON
	timeout                  time.Duration // 0 means requestTimeout
}

type response struct {
	code int
	body []byte
	err  error
}

// send sends a request and reads the response. code is 0 if there was none.
func (r *replica) send(q request) response {
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(q.timeout, requestTimeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, q.method, r.url+q.path, strings.NewReader(q.body))
	if err != nil {
		return response{err: err}
	}
	if q.kind == "" {
		q.kind = "application/json"
	}
	req.Header.Set("Content-Type", q.kind)
	req.Header.Set("Accept", cmp.Or(q.accept, "application/json"))
	resp, err := r.client.Do(req)
	if err != nil {
		return response{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return response{err: err}
	}
	return response{code: resp.StatusCode, body: body}
}

// meta is the part of metadata that the checks use.
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

// object is an object, or the Status returned instead.
type object struct {
	Kind     string            `json:"kind"`
	Metadata meta              `json:"metadata"`
	Data     map[string]string `json:"data"`
	Code     int               `json:"code"`
	Message  string            `json:"message"`

	digest uint64 // the hash of its bytes without kind and apiVersion
	raw    []byte // these bytes, if they are few
}

// typed matches the kind and apiVersion of an object. List items have none.
var typed = regexp.MustCompile(`^\{"kind":"\w+","apiVersion":"[\w./]+",`)

func (o *object) UnmarshalJSON(raw []byte) error {
	type plain object
	if err := json.Unmarshal(raw, (*plain)(o)); err != nil {
		return err
	}
	raw = typed.ReplaceAll(bytes.TrimSpace(bytes.Clone(raw)), []byte("{"))
	if len(raw) < 2<<10 {
		o.raw = raw
	}
	digest := fnv.New64a()
	digest.Write(raw)
	o.digest = digest.Sum64()
	return nil
}

// text returns the text that contains the payload: a ConfigMap's data, another object's annotation.
func (o *object) text() string { return cmp.Or(o.Metadata.Annotations["p"], o.Data["p"]) }

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

// payload is the text that one write, and no other, puts into an object. It includes the value of the group label, so
// that stored bytes contain it. All payloads have the same length, and need no escapes in JSON.
type payload struct {
	id    int64
	group string
}

func (p payload) String() string { return fmt.Sprintf("(%08d:%s)", p.id, p.group) }

// json returns an object with the payload. An empty revision sets no precondition.
func (p payload) json(name, revision string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"resourceVersion":%q,"labels":{"g":%q}},"data":{"p":%q}}`, name, revision, p.group, p)
}

var payloads = regexp.MustCompile(`\((\d+):([a-z])\)`)

// readPayload finds a payload in text or bytes.
func readPayload[T string | []byte](in T) (payload, bool) {
	found := payloads.FindStringSubmatch(string(in))
	if found == nil {
		return payload{}, false
	}
	id, _ := strconv.ParseInt(found[1], 10, 64)
	return payload{id, found[2]}, true
}
