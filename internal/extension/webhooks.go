package extension

import (
	"context"
	"fmt"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/tracing"
)

// webhooks is how those that convert are reached: services by their cluster IP.
type webhooks struct {
	client kubernetes.Interface
	auth   webhook.AuthenticationInfoResolverWrapper
}

func newWebhooks(client kubernetes.Interface, config *restclient.Config) webhooks {
	auth := webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, config, tracing.NewNoopTracerProvider())
	return webhooks{client: client, auth: auth}
}

// ResolveEndpoint implements webhook.ServiceResolver.
func (w webhooks) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return proxy.ResolveCluster(serviceLister{client: w.client}, namespace, name, port)
}

// serviceLister asks for services one by one: few are needed, and not often.
type serviceLister struct {
	corelisters.ServiceLister // nil: nothing is listed
	client                    kubernetes.Interface
}

// Services implements corelisters.ServiceLister.
func (l serviceLister) Services(namespace string) corelisters.ServiceNamespaceLister {
	return serviceNamespaceLister{client: l.client, namespace: namespace}
}

type serviceNamespaceLister struct {
	client    kubernetes.Interface
	namespace string
}

// List implements corelisters.ServiceNamespaceLister.
func (serviceNamespaceLister) List(labels.Selector) ([]*corev1.Service, error) {
	return nil, fmt.Errorf("extension: services are not listed")
}

// Get implements corelisters.ServiceNamespaceLister.
func (l serviceNamespaceLister) Get(name string) (*corev1.Service, error) {
	// The interface has no context. The client calls this very process.
	return l.client.CoreV1().Services(l.namespace).Get(context.Background(), name, metav1.GetOptions{})
}
