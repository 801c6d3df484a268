package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// plugin adds a credential as client-go does: no context ends its wait.
type plugin struct {
	next  http.RoundTripper
	ready chan struct{} // closed when the credential is ready
}

func (p *plugin) RoundTrip(req *http.Request) (*http.Response, error) {
	<-p.ready
	resp, err := p.next.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		<-p.ready
	}
	return resp, err
}

// respondingUpstream counts requests and responds to them.
type respondingUpstream struct {
	sent int
	code int
}

func (f *respondingUpstream) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Context().Err() != nil {
		return nil, context.Cause(req.Context())
	}
	f.sent++
	return &http.Response{StatusCode: f.code, Header: make(http.Header), Body: io.NopCloser(strings.NewReader("response")), Request: req}, nil
}

// TestPluginHangs checks that a request whose credential plugin hangs ends with its context, and after ten seconds at the
// latest. It must not be sent afterwards.
func TestPluginHangs(t *testing.T) {
	for name, limit := range map[string]time.Duration{"context": time.Second, "limit": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				upstream := &respondingUpstream{code: http.StatusOK}
				hangs := &plugin{next: credentialTransport{upstream}, ready: make(chan struct{})}
				p := &pluginTransport{hangs, semaphore.NewWeighted(2)}
				want := errNoCredential
				if limit < credentialTimeout {
					want = context.DeadlineExceeded
				}
				for i := range 4 { // the last two find no slot
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					began := time.Now()
					req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "https://upstream", strings.NewReader("body"))
					if _, err := p.RoundTrip(req); !errors.Is(err, want) || time.Since(began) != min(limit, credentialTimeout) {
						t.Errorf("request %d: %v after %v", i, err, time.Since(began))
					}
					cancel()
				}
				close(hangs.ready)
				synctest.Wait()
				if upstream.sent != 0 || !p.waiting.TryAcquire(2) {
					t.Errorf("%d requests were sent although they had ended, or some still wait", upstream.sent)
				}
				p.waiting.Release(2)
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://upstream", nil)
				resp, err := p.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour)
				if text, err := io.ReadAll(resp.Body); string(text) != "response" || err != nil || resp.Body.Close() != nil || upstream.sent != 1 || resp.Request.Context().Err() != nil {
					t.Errorf("%q, %v, sent %d", text, err, upstream.sent)
				}
			})
		})
	}
}

// TestPluginHangsAfterRefusal checks that a request ends although client-go runs the plugin again before it returns a
// 401.
func TestPluginHangsAfterRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := &plugin{next: credentialTransport{&respondingUpstream{code: http.StatusUnauthorized}}, ready: make(chan struct{}, 1)}
		hangs.ready <- struct{}{}
		p := &pluginTransport{hangs, semaphore.NewWeighted(1)}
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://upstream", nil)
		began := time.Now()
		if _, err := p.RoundTrip(req); !errors.Is(err, errNoCredential) || time.Since(began) != credentialTimeout {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if p.waiting.TryAcquire(1) {
			t.Error("a request that waits for the plugin again does not count")
		}
		close(hangs.ready)
		if synctest.Wait(); !p.waiting.TryAcquire(1) {
			t.Error("the request counts after the plugin has ended")
		}
	})
}

// slowUpstream responds when the test sends a response, even if the request has ended.
type slowUpstream struct{ responses chan *http.Response }

func (f slowUpstream) RoundTrip(*http.Request) (*http.Response, error) { return <-f.responses, nil }

// closeRecorder records whether it was closed.
type closeRecorder struct {
	io.Reader
	closed bool
}

func (c *closeRecorder) Close() error { c.closed = true; return nil }

// TestSlowUpstream checks that requests that have their credential do not delay others.
func TestSlowUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := slowUpstream{make(chan *http.Response)}
		made := &plugin{next: credentialTransport{upstream}, ready: make(chan struct{})}
		close(made.ready)
		p := &pluginTransport{made, semaphore.NewWeighted(1)}
		ended := make(chan error)
		for range 3 {
			go func() {
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://upstream", nil)
				_, err := p.RoundTrip(req)
				ended <- err
			}()
		}
		time.Sleep(time.Hour)
		for range 3 {
			upstream.responses <- &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestLateResponsesAreClosed checks that the body of the response to an abandoned request is closed.
func TestLateResponsesAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := slowUpstream{make(chan *http.Response)}
		p := &pluginTransport{credentialTransport{upstream}, semaphore.NewWeighted(1)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "https://upstream", nil)
		if _, err := p.RoundTrip(req); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		body := new(closeRecorder)
		upstream.responses <- &http.Response{StatusCode: http.StatusSwitchingProtocols, Body: body}
		if synctest.Wait(); !body.closed {
			t.Error("the connection stays open")
		}
	})
}

// TestLateCredentialsAreNotUsed checks that a request whose timer has fired is not sent.
func TestLateCredentialsAreNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		slots := semaphore.NewWeighted(1)
		if !slots.TryAcquire(1) {
			t.Fatal("no slot")
		}
		c := &call{time.AfterFunc(0, func() {}), cancel, slots, 1}
		synctest.Wait() // the timer has fired, but not yet called giveUp
		upstream := &respondingUpstream{code: http.StatusOK}
		req, _ := http.NewRequestWithContext(context.WithValue(ctx, callKey{}, c), http.MethodPost, "https://upstream", nil)
		if _, err := (credentialTransport{upstream}).RoundTrip(req); !errors.Is(err, errNoCredential) || upstream.sent != 0 || !slots.TryAcquire(1) {
			t.Errorf("%v, sent %d", err, upstream.sent)
		}
		req, _ = http.NewRequestWithContext(t.Context(), http.MethodPost, "https://upstream", nil)
		if _, err := (credentialTransport{upstream}).RoundTrip(req); err != nil || upstream.sent != 1 {
			t.Errorf("without a timer: %v, sent %d", err, upstream.sent)
		}
	})
}

// TestExecPlugin checks that client-go's plugins behave like the plugins of these tests.
func TestExecPlugin(t *testing.T) {
	u := newUpstream(t, func(w http.ResponseWriter, req *http.Request) { fmt.Fprint(w, req.Header.Get("Authorization")) })
	dir := t.TempDir()
	script, hangs := filepath.Join(dir, "plugin"), filepath.Join(dir, "hangs")
	text := fmt.Sprintf(`#!/bin/sh
while [ -e "%s" ]; do sleep 0.1; done
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"made"}}'
`, hangs)
	for file, content := range map[string]string{script: text, hangs: ""} {
		if err := os.WriteFile(file, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	config := u.anonymousConfig()
	config.ExecProvider = &clientcmdapi.ExecConfig{Command: script, APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode}
	transport, err := TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, u.URL, nil)
	time.AfterFunc(100*time.Millisecond, cancel) // while the plugin runs, or before
	if _, err := transport.RoundTrip(req); !errors.Is(err, context.Canceled) {
		t.Errorf("a plugin that hangs: %v", err)
	}
	if err := os.Remove(hangs); err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); string(text) != "Bearer made" || err != nil || len(u.received) != 1 {
		t.Errorf("%q, %v, %d requests", text, err, len(u.received))
	}
	utilnet.CloseIdleConnectionsFor(transport)
}
