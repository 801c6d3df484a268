package main

import (
	"context"
	"encoding/json"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// remote connects to the server that a command calls.
type remote struct {
	kubeconfig, context string
}

func (r *remote) addTo(fs *pflag.FlagSet) {
	fs.StringVar(&r.kubeconfig, "kubeconfig", "", "Kubeconfig of the server's administrator. (default $KUBECONFIG, else ~/.kube/config)")
	fs.StringVar(&r.context, "context", "", "Context of the kubeconfig.")
}

// request sends a request for path and decodes the response into *out, unless out is nil.
func (r *remote) request(ctx context.Context, method, path string, query map[string]string, out any) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = r.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: r.context}).ClientConfig()
	if err != nil {
		return err
	}
	config.GroupVersion, config.NegotiatedSerializer = &schema.GroupVersion{}, scheme.Codecs
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return err
	}
	request := client.Verb(method).AbsPath(path)
	for name, value := range query {
		request.Param(name, value)
	}
	result := request.Do(ctx)
	if err := result.Error(); err != nil || out == nil { // this error includes the Status, unlike Raw's
		return err
	}
	body, err := result.Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(body, out)
}
