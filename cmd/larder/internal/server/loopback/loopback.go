package loopback

import (
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/registry/bootstrap"
)

// Transport is the http.RoundTripper of the server's own clients. Requests wait until Attach.
type Transport struct {
	attached chan struct{} // closed once next is set
	next     http.RoundTripper
}

// NewTransport returns a Transport whose requests wait for Attach.
func NewTransport() *Transport { return &Transport{attached: make(chan struct{})} }

// Attach makes next serve the waiting requests and all later ones. It may be called once.
func (t *Transport) Attach(next http.RoundTripper) {
	t.next = next
	close(t.attached)
}

// Attached is closed when Attach is called.
func (t *Transport) Attached() <-chan struct{} { return t.attached }

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
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

// CloseIdleConnections closes the connections that no request uses.
func (t *Transport) CloseIdleConnections() { utilnet.CloseIdleConnectionsFor(t.next) }

// Config returns the configuration of a client of this server in process. The client uses protobuf for
// resources that have it, has no rate limit, and drops warnings. The field manager of its writes is the
// part of userAgent before the first slash.
func Config(transport http.RoundTripper, userAgent string) *rest.Config {
	return &rest.Config{
		Host:      "https://larder.invalid", // never resolved
		Transport: transport,
		QPS:       -1,
		ContentConfig: rest.ContentConfig{
			ContentType:        runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		},
		UserAgent:      userAgent,
		WarningHandler: rest.NoWarnings{},
	}
}

// NewInformers returns informers that use client. They drop managedFields, which no handler needs. Only those of
// Services and IPAddresses resync, for upstream's repair controller of service addresses.
func NewInformers(client kubernetes.Interface) informers.SharedInformerFactory {
	resync := informers.WithCustomResyncConfig(map[metav1.Object]time.Duration{
		&corev1.Service{}: bootstrap.RepairInterval, &networkingv1.IPAddress{}: bootstrap.RepairInterval,
	})
	return recordingFactory{informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trim), resync)}
}

func trim(object any) (any, error) {
	if m, err := meta.Accessor(object); err == nil {
		m.SetManagedFields(nil)
	}
	return object, nil
}
