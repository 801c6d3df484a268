package server

import (
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// lateTransport is the transport of the process's own clients. They are built
// before the front door that it calls; until attach, requests wait.
type lateTransport struct {
	attached chan struct{} // closed once next is set
	next     http.RoundTripper
}

func newLateTransport() *lateTransport { return &lateTransport{attached: make(chan struct{})} }

// attach is called once.
func (t *lateTransport) attach(next http.RoundTripper) {
	t.next = next
	close(t.attached)
}

// RoundTrip implements http.RoundTripper.
func (t *lateTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	select {
	case <-t.attached:
		return t.next.RoundTrip(req)
	case <-req.Context().Done():
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, fmt.Errorf("server: not serving yet: %w", req.Context().Err())
	}
}

// loopbackConfig reaches this server in process, in protobuf where there is one,
// as fast as it answers.
func loopbackConfig(transport http.RoundTripper) *rest.Config {
	return &rest.Config{
		Host:      "https://larder.invalid", // never resolved
		Transport: transport,
		QPS:       -1,
		ContentConfig: rest.ContentConfig{
			ContentType:        runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		},
		UserAgent: "larder",
	}
}

// newClients returns a client over config and informers over the client. They keep
// no managed fields, which nobody in this process reads, and never resync: what
// they hold cannot drift.
func newClients(config *rest.Config) (kubernetes.Interface, informers.SharedInformerFactory, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("server: in-process client: %w", err)
	}
	return client, informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trim)), nil
}

func trim(object any) (any, error) {
	if m, err := meta.Accessor(object); err == nil {
		m.SetManagedFields(nil)
	}
	return object, nil
}
