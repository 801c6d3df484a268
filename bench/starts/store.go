package starts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"golang.org/x/sync/errgroup"
)

// store is an etcd, as its HTTP interface shows it.
type store struct {
	url    string
	client *http.Client
}

// pair is a key with its value. Both are in base64 in JSON, as the interface wants them.
type pair struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

// ask sends a request and decodes the answer.
func (s *store) ask(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("starts: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("starts: %w", err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return fmt.Errorf("starts: etcd: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return fmt.Errorf("starts: etcd: %w", err)
	case resp.StatusCode != http.StatusOK:
		const most = 300
		return fmt.Errorf("starts: etcd: %s: %s: %s", path, resp.Status, answer[:min(len(answer), most)])
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("starts: etcd: %s: %w", path, err)
	}
	return nil
}

// header is the header of all answers. The interface writes revisions as strings.
type header struct {
	Header struct {
		Revision string `json:"revision"`
	} `json:"header"`
}

// ranged is the answer to a range.
type ranged struct {
	header
	Kvs   []pair `json:"kvs"`
	Count string `json:"count"`
}

// get returns the value of a key.
func (s *store) get(ctx context.Context, key string) ([]byte, error) {
	var answer ranged
	if err := s.ask(ctx, "/v3/kv/range", pair{Key: []byte(key)}, &answer); err != nil {
		return nil, err
	}
	if len(answer.Kvs) != 1 {
		return nil, fmt.Errorf("starts: etcd has no %s", key)
	}
	return answer.Kvs[0].Value, nil
}

// count counts the keys below a prefix that ends in a slash.
func (s *store) count(ctx context.Context, prefix string) (string, error) {
	end := []byte(prefix)
	end[len(end)-1]++
	var answer ranged
	err := s.ask(ctx, "/v3/kv/range", map[string]any{"key": []byte(prefix), "range_end": end, "count_only": true}, &answer)
	return answer.Count, err
}

// fill writes n pairs, many in each transaction.
func (s *store) fill(ctx context.Context, n int, item func(i int) (pair, error)) error {
	const (
		each    = 64 // in a transaction: etcd's limits are 128, and 1.5 MB
		clients = 4
	)
	writing, ctx := errgroup.WithContext(ctx)
	writing.SetLimit(clients)
	for first := 0; first < n; first += each {
		writing.Go(func() error {
			type operation struct {
				Put pair `json:"requestPut"`
			}
			var operations []operation
			for i := first; i < min(first+each, n); i++ {
				p, err := item(i)
				if err != nil {
					return err
				}
				operations = append(operations, operation{p})
			}
			var answer struct {
				header
				Succeeded bool `json:"succeeded"`
			}
			if err := s.ask(ctx, "/v3/kv/txn", map[string]any{"success": operations}, &answer); err != nil {
				return err
			}
			if !answer.Succeeded {
				return errors.New("starts: etcd did not write")
			}
			return nil
		})
	}
	return writing.Wait()
}

// compact removes the history, so that servers do not replay it.
func (s *store) compact(ctx context.Context) error {
	var now, done ranged
	if err := s.ask(ctx, "/v3/kv/range", pair{Key: []byte("none")}, &now); err != nil {
		return err
	}
	if err := s.ask(ctx, "/v3/kv/compaction", map[string]any{"revision": now.Header.Revision, "physical": true}, &done); err != nil {
		return err
	}
	return s.ask(ctx, "/v3/maintenance/defragment", struct{}{}, &done)
}
