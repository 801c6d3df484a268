package bench

import (
	"context"
	"errors"
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
	// Load is the load of each of Verbs. Its operations are objects. A plan must be open.
	Load

	run int64 // makes the names of objects unique to this run
}

// Write creates, patches, applies and deletes all objects, one verb after the other, and returns one Result for each
// of Verbs. It first sends all verbs to one more object without measuring. After Target.Stop it deletes the objects
// that it has created and returns the Results so far.
func Write(ctx context.Context, t *Target, c WriteConfig) ([]*Result, error) {
	l := loop{Load: c.Load}
	if err := l.bounded(); err != nil {
		return nil, err
	}
	c.Operations, c.run = l.total(), time.Now().UnixNano()
	if err := t.ensureNamespace(ctx, c.Namespace); err != nil {
		return nil, err
	}
	for _, verb := range Verbs { // servers initialize parts on first use
		if err := t.once(ctx, c.write(verb, c.Operations)); err != nil {
			return nil, err
		}
	}
	var results []*Result
	created := 0
	for _, verb := range Verbs {
		var warm operation
		if verb == create {
			warm = c.allVerbs
		}
		result, err := l.measure(ctx, t, verb, "request", warm, send(func(i int) Request { return c.write(verb, i) }))
		if err != nil {
			return results, err
		}
		results = append(results, result)
		if verb == create {
			created = result.Ops
		}
		if result.Interrupted && verb != remove {
			return results, c.remove(ctx, t, created)
		}
	}
	return results, nil
}

// allVerbs is the operation of the warm-up. It sends all verbs to one object.
func (c *WriteConfig) allVerbs(ctx context.Context, own *conn, i int, _ time.Time) (o outcome, err error) {
	for _, verb := range Verbs {
		if o, err = own.do(c.write(verb, c.Operations+1+i)); err != nil {
			return o, err
		}
	}
	return o, nil
}

// remove deletes the first n objects, and those that requests in flight may have created.
func (c *WriteConfig) remove(ctx context.Context, t *Target, n int) error {
	other := t.Clone()
	other.stopping = context.Background() // so that the removal continues after Stop
	rec := &recorder{target: t, name: "deleting the created objects", total: n, began: time.Now(), result: NewResult("", "")}
	t.running.Store(rec)
	defer t.running.CompareAndSwap(rec, nil)
	l := loop{Load: Load{Operations: min(n+c.Clients, c.Operations), Clients: c.Clients}, strict: true}
	return l.run(ctx, other, rec, func(ctx context.Context, own *conn, i int, _ time.Time) (outcome, error) {
		o, err := own.do(c.write(remove, i))
		if o.status == http.StatusNotFound {
			err = nil
		}
		return o, err
	})
}

// write returns the request of one verb for object i.
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

// configMap returns a ConfigMap of about 1 KB as JSON.
func configMap(name, key string, i int) []byte {
	text := strings.Repeat("listen=:8080 log.format=json shutdown.grace=20s ", 16)
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"labels":{"app.kubernetes.io/name":"bench","shard":"%d"}},"data":{%q:%q}}`, name, i%10, key, text)
}

// PatchConfig is a workload of merge patches of existing objects.
type PatchConfig struct {
	// Name is the name of the result.
	Name string
	// Objects are the paths of the objects that are patched in turn.
	Objects []string
	Load
}

// PatchObjects patches an annotation of the objects in turn, after one unmeasured patch. Each patch is a change.
func PatchObjects(ctx context.Context, t *Target, c PatchConfig) (*Result, error) {
	l := loop{Load: c.Load}
	if err := l.check(); err != nil {
		return nil, err
	}
	if len(c.Objects) == 0 {
		return nil, errors.New("bench: want at least one object to patch")
	}
	if err := t.Change(ctx, c.Objects[0]); err != nil {
		return nil, err
	}
	patch := func(run int64) operation {
		return send(func(i int) Request { return markPatch(c.Objects[i%len(c.Objects)], run, i) })
	}
	run := newRun()
	return l.measure(ctx, t, c.Name, "request", patch(run-1), patch(run))
}
