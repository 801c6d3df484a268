package bench

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Target is one API server under load. Its methods may be called concurrently.
type Target struct {
	// Process is the server's process, zero when it runs elsewhere.
	Process Process

	config *rest.Config
	client *http.Client
}

// NewTarget returns the server that the current context of a kubeconfig file
// names. It speaks HTTP/1.1 over at most conns connections and does no I/O
// beyond reading the file.
func NewTarget(kubeconfig string, conns int) (*Target, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("bench: kubeconfig: %w", err)
	}
	config.QPS = -1
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("bench: kubeconfig: %w", err)
	}
	transport := &http.Transport{
		TLSClientConfig:     tlsConfig,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
		MaxConnsPerHost:     conns,
		MaxIdleConnsPerHost: conns,
		DisableCompression:  true,
		ReadBufferSize:      64 << 10,
	}
	wrapped, err := rest.HTTPWrappersForConfig(config, transport)
	if err != nil {
		return nil, fmt.Errorf("bench: kubeconfig: %w", err)
	}
	return &Target{config: config, client: &http.Client{Transport: wrapped}}, nil
}

// Close drops idle connections.
func (t *Target) Close() { t.client.CloseIdleConnections() }

// get reads path to its end, discards the body and returns its length.
func (t *Target) get(ctx context.Context, path, accept, encoding string, buf []byte) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.config.Host+path, nil)
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	req.Header.Set("Accept", accept)
	if encoding != "" {
		req.Header.Set("Accept-Encoding", encoding)
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	defer resp.Body.Close()
	n, err := drain(resp.Body, buf)
	if err != nil {
		return n, fmt.Errorf("bench: body of %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return n, fmt.Errorf("bench: GET %s: %s", path, resp.Status)
	}
	return n, nil
}

// drain reads r to its end through buf.
func drain(r io.Reader, buf []byte) (int64, error) {
	var n int64
	for {
		k, err := r.Read(buf)
		n += int64(k)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// Ready waits until the server's /readyz answers 200, and returns how long
// that took.
func (t *Target) Ready(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	buf := make([]byte, 4<<10)
	for {
		_, err := t.get(ctx, "/readyz", "*/*", "", buf)
		if err == nil {
			return time.Since(start), nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("bench: not ready: %w", err)
		case <-tick.C:
		}
	}
}
