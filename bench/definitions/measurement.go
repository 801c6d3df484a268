package definitions

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-io/larder/bench/process"
	"github.com/larder-io/larder/bench/testservers"
)

// measurement measures one server.
type measurement struct {
	config  *Config
	result  *Result
	started *testservers.Servers

	server *testservers.Server
	client *http.Client
	base   string
	last   time.Duration // CPU time of the server at the end of the last step
}

// Steps of a measurement, as tables name them.
const (
	stepCreate  = "all created"
	stepServed  = "until all are served"
	stepV2      = "first /openapi/v2"
	stepV2again = "the same again, after one more definition"
	stepV3      = "first /openapi/v3 documents"
	stepUse     = "one object of each made, read and listed"
	stepStart   = "start with all of them, until discovered"
)

// run does all steps.
func (p *measurement) run(ctx context.Context, server *testservers.Server) error {
	if err := p.take(ctx, server); err != nil {
		return err
	}
	empty, err := p.memory(ctx)
	if err != nil {
		return err
	}
	p.result.Empty = empty
	c := p.config
	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{stepCreate, func(ctx context.Context) error { return p.each(ctx, c.Count, p.create) }},
		{stepServed, p.served},
		{stepV2, func(ctx context.Context) error { return p.described(ctx, c.Count) }},
		{stepV2again, func(ctx context.Context) error {
			if err := p.create(ctx, c.Count); err != nil {
				return err
			}
			return p.described(ctx, c.Count+1)
		}},
		{stepV3, p.documents},
	}
	for _, s := range steps {
		if err := p.step(ctx, s.name, s.do); err != nil {
			return err
		}
	}
	if p.result.Described, err = p.memory(ctx); err != nil {
		return err
	}
	if c.Used {
		if err := p.step(ctx, stepUse, func(ctx context.Context) error { return p.each(ctx, c.Count, p.use) }); err != nil {
			return err
		}
		if p.result.InUse, err = p.memory(ctx); err != nil {
			return err
		}
	}
	return p.restart(ctx)
}

// restart starts the server again and measures the cost of unused CRDs.
func (p *measurement) restart(ctx context.Context) error {
	if err := p.server.Stop(); err != nil {
		return err
	}
	again, err := p.started.Again(p.server)
	if err != nil {
		return err
	}
	if err := p.take(ctx, again); err != nil {
		return err
	}
	p.last = 0
	if err := p.step(ctx, stepStart, p.discovered); err != nil {
		return err
	}
	p.result.Idle, err = p.memory(ctx)
	return err
}

// take makes server the one that is asked, once it is ready.
func (p *measurement) take(ctx context.Context, server *testservers.Server) error {
	p.config.Sayf("%s: starting", p.result.Server)
	if err := server.Ready(ctx); err != nil {
		return err
	}
	var err error
	p.server, p.base = server, "https://"+server.Address()
	p.client, err = server.Target.HTTPClient("definitions")
	return err
}

// settling is how long a server is left alone before its memory is looked at: informers and
// controllers catch up, and pages are given back.
const settling = 5 * time.Second

// memory returns the memory of the server after a garbage collection.
func (p *measurement) memory(ctx context.Context) (m Memory, err error) {
	select {
	case <-time.After(settling):
	case <-ctx.Done():
		return m, ctx.Err()
	}
	body, err := p.get(ctx, "/debug/pprof/heap?gc=1&debug=1", "")
	if err != nil {
		return m, err
	}
	if err := p.keep(fmt.Sprintf("heap-%d", len(p.result.Steps)), func() ([]byte, error) { return p.get(ctx, "/debug/pprof/heap", "") }); err != nil {
		return m, err
	}
	if m.Heap = process.Figure(body, "# HeapAlloc ="); m.Heap == 0 {
		return m, fmt.Errorf("%s does not tell its heap", p.result.Server)
	}
	usage, err := p.server.Process.Usage()
	m.RSS = usage.RSS
	p.last = usage.CPU
	return m, err
}

// step does something and accounts for it.
func (p *measurement) step(ctx context.Context, name string, do func(context.Context) error) error {
	p.config.Sayf("%s: %s", p.result.Server, name)
	begin, before := time.Now(), p.last
	if before == 0 && name != stepStart {
		usage, err := p.server.Process.Usage()
		if err != nil {
			return err
		}
		before = usage.CPU
	}
	profiled := p.profile(ctx)
	if err := do(ctx); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", name, err), profiled())
	}
	usage, err := p.server.Process.Usage()
	if err != nil {
		return err
	}
	p.result.Steps = append(p.result.Steps, Step{Name: name, CPU: usage.CPU - before, Wall: time.Since(begin), PeakRSS: usage.PeakRSS})
	p.last = usage.CPU
	if err := profiled(); err != nil {
		return err
	}
	p.config.Sayf("%s: %s: %v of CPU, %v", p.result.Server, name, (usage.CPU - before).Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
	return nil
}

// profiling is how long the CPU profile of a step is at least; the next step waits for its end.
const profiling = 10 * time.Second

// profile begins a CPU profile of the server, if profiles are wanted. The returned function
// waits for it.
func (p *measurement) profile(ctx context.Context) (wait func() error) {
	if p.config.Profiles == "" {
		return func() error { return nil }
	}
	done, name := make(chan error, 1), fmt.Sprintf("cpu-%d", len(p.result.Steps)+1)
	go func() {
		done <- p.keep(name, func() ([]byte, error) {
			return p.get(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", profiling/time.Second), "")
		})
	}()
	return func() error { return <-done }
}

// keep reads a profile and writes it to a file, if profiles are wanted.
func (p *measurement) keep(name string, read func() ([]byte, error)) error {
	if p.config.Profiles == "" {
		return nil
	}
	data, err := read()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(p.config.Profiles, fmt.Sprintf("%s-%d-%s.pprof", p.result.Server, p.result.Round, name)), data, 0o600)
}

// each calls do for 0 to n-1, several at a time, until one fails.
func (p *measurement) each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(p.config.Clients, n) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// create makes the i-th definition.
func (p *measurement) create(ctx context.Context, i int) error {
	_, err := p.ask(ctx, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "", p.config.definition(i))
	return err
}

// use makes, reads and lists an object of the i-th definition.
func (p *measurement) use(ctx context.Context, i int) error {
	path := "/apis/" + p.config.group(i) + "/v1/namespaces/default/" + plural(i)
	if _, err := p.ask(ctx, http.MethodPost, path, "", p.config.object(i)); err != nil {
		return err
	}
	for _, path := range []string{path + "/one", path} {
		if _, err := p.get(ctx, path, ""); err != nil {
			return err
		}
	}
	return nil
}

// patience is how often a client asks again for what is not there yet.
const patience = time.Second

// errLate is the error of requests that the server gave up; it may have come further by then.
var errLate = errors.New("the server took too long")

// until asks again until done.
func until(ctx context.Context, done func() (bool, error)) error {
	for {
		ok, err := done()
		if ok || err != nil && !errors.Is(err, errLate) {
			return err
		}
		select {
		case <-time.After(patience):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// served waits until all definitions are discovered, indexed and answer lists.
func (p *measurement) served(ctx context.Context) error {
	if err := p.discovered(ctx); err != nil {
		return err
	}
	if err := until(ctx, func() (bool, error) {
		body, err := p.get(ctx, "/openapi/v3", "application/json")
		if err != nil {
			return false, err
		}
		for g := range p.config.groups() {
			if !bytes.Contains(body, fmt.Appendf(nil, `"apis/%s/v1"`, p.config.groupName(g))) {
				return false, nil
			}
		}
		return true, nil
	}); err != nil {
		return err
	}
	return p.each(ctx, p.config.Count, func(ctx context.Context, i int) error {
		_, err := p.get(ctx, "/apis/"+p.config.group(i)+"/v1/"+plural(i)+"?limit=1", "")
		return err
	})
}

// aggregated is the media type of discovery in one document.
const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// discovered waits until all definitions are discovered.
func (p *measurement) discovered(ctx context.Context) error {
	return until(ctx, func() (bool, error) {
		body, err := p.get(ctx, "/apis", aggregated)
		return bytes.Count(body, []byte(`"resource":"`+prefix)) >= p.config.Count, err
	})
}

// described waits until n definitions are in the document of OpenAPI v2.
func (p *measurement) described(ctx context.Context, n int) error {
	return until(ctx, func() (bool, error) {
		body, err := p.get(ctx, "/openapi/v2", "application/json")
		if err != nil {
			return false, err
		}
		has := paths(body)
		for i := range n {
			if !has["/apis/"+p.config.group(i)+"/v1/"+plural(i)] {
				return false, nil
			}
		}
		return true, nil
	})
}

// paths returns the paths below /apis that a document of OpenAPI names, found in one pass: with
// thousands of definitions it has a hundred megabytes.
func paths(document []byte) map[string]bool {
	const start = `"/apis/`
	found := make(map[string]bool)
	for {
		at := bytes.Index(document, []byte(start))
		if at < 0 {
			return found
		}
		document = document[at+1:]
		path, rest, closed := bytes.Cut(document, []byte(`"`))
		if !closed {
			return found
		}
		found[string(path)], document = true, rest
	}
}

// documents reads the documents of OpenAPI v3 of all groups.
func (p *measurement) documents(ctx context.Context) error {
	return p.each(ctx, p.config.groups(), func(ctx context.Context, g int) error {
		body, err := p.get(ctx, "/openapi/v3/apis/"+p.config.groupName(g)+"/v1", "application/json")
		if err == nil && !json.Valid(body) {
			err = fmt.Errorf("the document of group %d is not valid", g)
		}
		return err
	})
}

func (p *measurement) get(ctx context.Context, path, accept string) ([]byte, error) {
	return p.ask(ctx, http.MethodGet, path, accept, nil)
}

// ask sends a request and returns the body of its answer, which must be a success.
func (p *measurement) ask(ctx context.Context, method, path, accept string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if accept == "" {
		accept = "application/json"
	}
	req.Header.Set("Accept", accept)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if resp.StatusCode == http.StatusGatewayTimeout {
		return nil, fmt.Errorf("%s %s: %w", method, path, errLate)
	}
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, strings.TrimSpace(string(answer[:min(len(answer), 300)])))
	}
	return answer, err
}
