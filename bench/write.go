package bench

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// The verbs of Write.
const (
	create     = "create"
	mergePatch = "merge-patch"
	apply      = "apply"
	remove     = "delete"
)

// Verbs lists the verbs in the order in which Write sends them.
var Verbs = []string{create, mergePatch, apply, remove}

// WriteConfig is a workload that sends all Verbs to ConfigMaps of about 1 KB.
type WriteConfig struct {
	// Namespace holds the objects. It is created if it does not exist.
	Namespace string
	// Load is the load of each of Verbs. Its operations are objects. A plan must be open. There is no warm-up.
	Load

	run int64 // makes the names of objects unique to this run
}

// Write creates, patches, applies and deletes all objects, one verb after the other, and returns one Result for each
// of Verbs. After Target.Stop it deletes the objects that it has created and returns the Results so far.
func Write(ctx context.Context, t *Target, c WriteConfig) ([]*Result, error) {
	l := loop{Load: c.Load}
	if err := l.bounded(); err != nil {
		return nil, err
	}
	c.Operations, c.run = l.total(), time.Now().UnixNano()
	if err := t.ensureNamespace(ctx, c.Namespace); err != nil {
		return nil, err
	}
	var kinds []writeKind
	for _, verb := range Verbs {
		kinds = append(kinds, writeKind{name: verb, request: func(i int) Request { return c.write(verb, i) }})
	}
	results, err := l.inTurn(ctx, t, kinds)
	if err == nil && results[len(results)-1].Interrupted {
		err = c.remove(ctx, t, results[0].Ops)
	}
	return results, err
}

// writeKind is one kind of write of a workload.
type writeKind struct {
	name    string
	request func(i int) Request
	prepare func() error // unless nil, is called before the first request
}

// inTurn sends all operations of each kind of write, one kind after the other, and returns a Result for each. Before
// each kind, it sends request 0, which is not measured, because servers initialize parts on first use. It ends after a
// kind that Target.Stop has interrupted.
func (l loop) inTurn(ctx context.Context, t *Target, kinds []writeKind) (results []*Result, err error) {
	l.Warmup = 0 // a write cannot be repeated
	for _, k := range kinds {
		if k.prepare != nil {
			if err := k.prepare(); err != nil {
				return results, err
			}
		}
		if err := t.fetch(ctx, k.request(0)); err != nil {
			return results, err
		}
		requests := sequence(l.total(), func(i int) Request { return k.request(i + 1) }) // encoded before the measurement
		result, err := l.measure(ctx, t, k.name, "request", send(func(i int) Request { return requests[i] }))
		if err != nil {
			return results, err
		}
		if results = append(results, result); result.Interrupted {
			break
		}
	}
	return results, nil
}

// remove deletes n objects, the one that was not measured, and those that requests in flight may have created.
func (c *WriteConfig) remove(ctx context.Context, t *Target, n int) error {
	other := t.Clone()
	other.stopping = context.Background() // so that the removal continues after Stop
	l := loop{Load: Load{Operations: min(n+c.Clients, c.Operations) + 1, Clients: c.Clients}, strict: true}
	_, err := l.measure(ctx, other, "deleting the created objects", "object", func(ctx context.Context, own *conn, i int, _ time.Time) (outcome, error) {
		o, err := own.do(c.write(remove, i))
		if o.status == http.StatusNotFound {
			err = nil
		}
		return o, err
	})
	return err
}

func (c *WriteConfig) write(verb string, i int) Request {
	name := fmt.Sprintf("bench-%d-%06d", c.run, i)
	collection := "/api/v1/namespaces/" + c.Namespace + "/configmaps"
	r := Request{Path: collection + "/" + name, Accept: JSON, ContentType: JSON}
	switch verb {
	case create:
		r.Method, r.Path, r.Body = http.MethodPost, collection, configMap(name, "settings", i)
	case mergePatch:
		r.Method, r.ContentType = http.MethodPatch, "application/merge-patch+json"
		r.Body = fmt.Appendf(nil, `{"data":{"generation":"%d"}}`, i+1)
	case apply:
		r.Method, r.ContentType = http.MethodPatch, "application/apply-patch+yaml" // JSON is YAML
		r.Path += "?fieldManager=larder-bench&force=true"
		r.Body = configMap(name, "applied", i)
	case remove:
		r.Method = http.MethodDelete
	}
	return r
}

func configMap(name, key string, i int) []byte {
	text := strings.Repeat("listen=:8080 log.format=json shutdown.grace=20s ", 16)
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"labels":{"app.kubernetes.io/name":"bench","shard":"%d"}},"data":{%q:%q}}`, name, i%10, key, text)
}
