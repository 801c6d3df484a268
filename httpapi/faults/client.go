package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Client sets rules at a server. With client-go's rest.Config, HTTP is what rest.HTTPClientFor returns,
// and URL is Config.Host.
type Client struct {
	HTTP *http.Client
	URL  string
}

// Set sets a rule, and replaces the one with the same name. Its counts start at 0.
func (c Client) Set(ctx context.Context, r Rule) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return c.do(ctx, http.MethodPut, "/"+url.PathEscape(r.Name), body, nil)
}

// Clear deletes rules, or all rules and the list of injected faults. Requests and events that the rules held
// continue.
func (c Client) Clear(ctx context.Context, names ...string) error {
	if len(names) == 0 {
		return c.do(ctx, http.MethodDelete, "", nil, nil)
	}
	for _, name := range names {
		if err := c.do(ctx, http.MethodDelete, "/"+url.PathEscape(name), nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// Step lets the next n events of each watch through that the rule holds, now or when they come.
func (c Client) Step(ctx context.Context, name string, n int) error {
	return c.do(ctx, http.MethodPost, fmt.Sprintf("/%s/step?events=%d", url.PathEscape(name), n), nil, nil)
}

// Release lets all events through that the rule holds now. Later ones are held again.
func (c Client) Release(ctx context.Context, name string) error {
	return c.do(ctx, http.MethodPost, "/"+url.PathEscape(name)+"/release", nil, nil)
}

// State returns the rules, the open watches and the faults injected so far.
func (c Client) State(ctx context.Context) (state State, err error) {
	err = c.do(ctx, http.MethodGet, "", nil, &state)
	return state, err
}

// do sends a request and decodes the response into out, unless that is nil.
func (c Client) do(ctx context.Context, method, below string, body []byte, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.URL, "/")+Path+below, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("faults: %s %s%s: %s: %s", method, Path, below, resp.Status, bytes.TrimSpace(data))
	case out == nil:
		return nil
	}
	return json.Unmarshal(data, out)
}

// String lists the seeds and the injected faults.
func (s State) String() string {
	var out strings.Builder
	for _, r := range s.Rules {
		if r.Seed != 0 {
			fmt.Fprintf(&out, "rule %s has seed %d\n", r.Name, r.Seed)
		}
	}
	for _, i := range s.Injected {
		fmt.Fprintln(&out, i)
	}
	return out.String()
}
