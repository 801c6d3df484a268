package crds

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/process"
	"github.com/larder-io/larder/bench/testservers"
)

// Config configures a measurement.
type Config struct {
	testservers.Trials
	Count, Clients int
	// Used creates, reads and lists one object of each CRD.
	Used bool
}

// Run measures each server. With an error it also returns the results so far.
func Run(ctx context.Context, c Config) ([]*bench.Result, error) {
	if c.Count < 1 || c.Clients < 1 {
		return nil, fmt.Errorf("crds: --count and --clients must be at least 1, are %d and %d", c.Count, c.Clients)
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	return c.Each(func(kind string, round int) ([]*bench.Result, error) {
		p := &measurement{config: &c, kind: kind, round: round}
		err := p.run(ctx)
		return p.results, err
	})
}

type measurement struct {
	config *Config
	kind   string
	round  int

	server  *testservers.Server
	client  rest.Interface
	last    time.Duration // CPU time of the server at the end of the last step
	empty   memory        // memory before the first CRD
	sizes   bench.Result  // memory per CRD
	results []*bench.Result
}

// memory is the live heap after a garbage collection, and the resident memory, in bytes.
type memory struct{ heap, rss int64 }

// stepStart is the step whose cost counts from the start of the process.
const stepStart = "start with all of them, until discovered"

func (p *measurement) run(ctx context.Context) (err error) {
	p.config.Sayf("%s: starting", p.kind)
	servers, err := testservers.New(ctx, p.config.TestServers, fmt.Sprintf("%s-%d", p.kind, p.round))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	if err := p.take(servers.Start(ctx, p.kind, testservers.DefaultGuards())); err != nil {
		return err
	}
	if p.empty, err = p.memory(ctx); err != nil {
		return err
	}
	return p.steps(ctx)
}

// steps runs all steps and adds a result for each, and one for the memory.
func (p *measurement) steps(ctx context.Context) error {
	c := p.config
	p.sizes = bench.Result{Name: p.kind + ": memory of a CRD", Unit: "CRD", Counts: bench.Counts{Ops: c.Count}}
	defer func() { p.results = append(p.results, &p.sizes) }()
	use := p.each(c.Count, p.use)
	if !c.Used {
		use = nil
	}
	for _, s := range []struct {
		name   string
		do     func(context.Context) error
		memory string // names a reading of the memory after the step, "" for none
	}{
		{"all created", p.each(c.Count, p.create), ""},
		{"until all are served", p.served, ""},
		{"first /openapi/v2", func(ctx context.Context) error { return p.described(ctx, c.Count) }, ""},
		{"the same again, after one more CRD", func(ctx context.Context) error {
			if err := p.create(ctx, c.Count); err != nil {
				return err
			}
			return p.described(ctx, c.Count+1)
		}, ""},
		{"first /openapi/v3 documents", p.each(c.groups(), p.document), "after all documents"},
		{"one object of each made, read and listed", use, "in use"},
		{stepStart, p.discovered, "idle, after a start"},
	} {
		if s.do == nil {
			continue
		}
		if s.name == stepStart {
			if err := p.restart(ctx); err != nil {
				return err
			}
		}
		if err := p.step(ctx, s.name, s.do); err != nil {
			return err
		}
		if s.memory == "" {
			continue
		}
		m, err := p.memory(ctx)
		if err != nil {
			return err
		}
		p.sizes.Add("heap, "+s.memory, float64(m.heap-p.empty.heap)/float64(c.Count), "B")
		p.sizes.Add("resident, "+s.memory, float64(m.rss-p.empty.rss)/float64(c.Count), "B")
	}
	return nil
}

func (p *measurement) restart(ctx context.Context) error {
	if err := p.server.Stop(); err != nil {
		return err
	}
	p.config.Sayf("%s: starting again", p.kind)
	p.last = 0
	return p.take(p.server.Again(ctx))
}

// take directs all later requests to server. It returns err if it is not nil.
func (p *measurement) take(server *testservers.Server, err error) error {
	if err != nil {
		return err
	}
	client, err := server.Target.Client("crds")
	if err != nil {
		return err
	}
	p.server, p.client = server, client.Discovery().RESTClient()
	return nil
}

// memory returns the memory of the server after a garbage collection. It first waits, so that informers and
// controllers catch up and the server returns pages to the system.
func (p *measurement) memory(ctx context.Context) (m memory, err error) {
	const settling = 5 * time.Second
	if err := bench.Sleep(ctx, settling); err != nil {
		return m, err
	}
	body, err := p.get(ctx, "/debug/pprof/heap?gc=1&debug=1", "*/*")
	if err != nil {
		return m, err
	}
	if m.heap = process.Figure(body, "# HeapAlloc ="); m.heap == 0 {
		return m, fmt.Errorf("%s does not report its heap", p.kind)
	}
	usage, err := p.server.Process.Usage()
	m.rss, p.last = usage.RSS, usage.CPU
	return m, err
}

// step runs do and adds a result of its cost.
func (p *measurement) step(ctx context.Context, name string, do func(context.Context) error) error {
	p.config.Sayf("%s: %s", p.kind, name)
	begin := time.Now()
	if err := do(ctx); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	usage, err := p.server.Process.Usage()
	if err != nil {
		return err
	}
	result := &bench.Result{Name: p.kind + ": " + name, Unit: "CRD", Counts: bench.Counts{Ops: p.config.Count}, ServerCPU: usage.CPU - p.last, Wall: time.Since(begin), Server: usage}
	p.last = usage.CPU
	p.results = append(p.results, result)
	p.config.Sayf("%s: %v of CPU, %v", result.Name, result.ServerCPU.Round(time.Millisecond), result.Wall.Round(time.Millisecond))
	return nil
}

// each returns a function that calls do for 0 to n-1, several at a time.
func (p *measurement) each(n int, do func(ctx context.Context, i int) error) func(context.Context) error {
	return func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(p.config.Clients)
		for i := range n {
			group.Go(func() error { return do(ctx, i) })
		}
		return group.Wait()
	}
}

func (p *measurement) create(ctx context.Context, i int) error {
	return p.post(ctx, bench.CRDsPath, crd(i))
}

func (p *measurement) use(ctx context.Context, i int) error {
	path := "/apis/" + group(i) + "/v1/namespaces/default/" + plural(i)
	if err := p.post(ctx, path, object(i)); err != nil {
		return err
	}
	for _, path := range []string{path + "/one", path} {
		if _, err := p.get(ctx, path, bench.JSON); err != nil {
			return err
		}
	}
	return nil
}

// await reads a document once a second until it contains text n times. Server timeouts do not end it.
func (p *measurement) await(ctx context.Context, path, accept, text string, n int) error {
	return until(ctx, func(ctx context.Context) (bool, error) {
		body, err := p.get(ctx, path, accept)
		return bytes.Count(body, []byte(text)) >= n, err
	})
}

// until calls done once a second until it returns true. Server timeouts do not end it.
func until(ctx context.Context, done func(context.Context) (bool, error)) error {
	return wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		ok, err := done(ctx)
		if apierrors.IsTimeout(err) {
			return false, nil
		}
		return ok, err
	})
}

// served waits until discovery and the index of OpenAPI v3 contain all CRDs, and the server serves lists of them.
func (p *measurement) served(ctx context.Context) error {
	if err := p.discovered(ctx); err != nil {
		return err
	}
	if err := p.await(ctx, "/openapi/v3", bench.JSON, domain+`/v1"`, p.config.groups()); err != nil {
		return err
	}
	return p.each(p.config.Count, func(ctx context.Context, i int) error {
		_, err := p.get(ctx, "/apis/"+group(i)+"/v1/"+plural(i)+"?limit=1", bench.JSON)
		return err
	})(ctx)
}

// aggregated is the media type of discovery in one document.
const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

func (p *measurement) discovered(ctx context.Context) error {
	return p.await(ctx, "/apis", aggregated, `"resource":"`+prefix, p.config.Count)
}

// described waits until n CRDs are in the document of OpenAPI v2. Each has one path of all namespaces.
func (p *measurement) described(ctx context.Context, n int) error {
	return p.await(ctx, "/openapi/v2", bench.JSON, domain+"/v1/"+prefix, n)
}

// document reads the document of OpenAPI v3 of a group.
func (p *measurement) document(ctx context.Context, g int) error {
	body, err := p.get(ctx, "/openapi/v3/apis/"+groupName(g)+"/v1", bench.JSON)
	if err == nil && !json.Valid(body) {
		err = fmt.Errorf("the document of group %d is not valid", g)
	}
	return err
}

func (p *measurement) get(ctx context.Context, path, accept string) ([]byte, error) {
	return p.client.Verb(http.MethodGet).RequestURI(path).SetHeader("Accept", accept).Do(ctx).Raw()
}

func (p *measurement) post(ctx context.Context, path string, body []byte) error {
	return p.client.Post().RequestURI(path).SetHeader("Accept", bench.JSON).SetHeader("Content-Type", bench.JSON).Body(body).Do(ctx).Error()
}

const (
	domain   = ".bench.example.com" // ends the names of groups
	prefix   = "kinds"              // begins the names of resources
	perGroup = 10                   // CRDs in a group
	perCRD   = 20                   // fields in a spec
)

func plural(i int) string { return fmt.Sprintf("%s%d", prefix, i) }

func (c *Config) groups() int { return (c.Count + perGroup - 1) / perGroup }

func groupName(g int) string { return fmt.Sprintf("g%d%s", g, domain) }

func group(i int) string { return groupName(i / perGroup) }

// crd returns the i-th CRD as JSON. It has fields like most CRDs: strings, numbers, lists and objects with
// descriptions, some with limits or defaults.
func crd(i int) []byte {
	fields := make(map[string]any, perCRD)
	for f := range perCRD {
		field := map[string]any{"description": fmt.Sprintf("field%d of kind %d configures the controller.", f, i)}
		switch f % 5 {
		case 0:
			field["type"], field["maxLength"] = "string", 200
		case 1:
			field["type"], field["minimum"], field["default"] = "integer", 0, f
		case 2:
			field["type"], field["items"] = "array", map[string]any{"type": "string"}
		case 3:
			field["type"], field["properties"] = "object", map[string]any{"name": map[string]any{"type": "string"}, "key": map[string]any{"type": "string"}}
		case 4:
			field["type"], field["enum"] = "string", []string{"Always", "Never"}
		}
		fields[fmt.Sprintf("field%d", f)] = field
	}
	return bench.EncodeJSON(bench.CRD(group(i), plural(i), fmt.Sprintf("Kind%d", i), map[string]any{"type": "object", "properties": map[string]any{
		"spec":   map[string]any{"type": "object", "properties": fields},
		"status": map[string]any{"type": "object", "properties": map[string]any{"phase": map[string]any{"type": "string"}}},
	}}, nil))
}

func object(i int) []byte {
	return bench.EncodeJSON(map[string]any{
		"apiVersion": group(i) + "/v1", "kind": fmt.Sprintf("Kind%d", i), "metadata": map[string]any{"name": "one"},
		"spec": map[string]any{"field0": "text"},
	})
}
