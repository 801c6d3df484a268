package relay

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	"k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/larder-io/larder/internal/auth"
)

// How long decisions of the upstream hold. Accepted tokens are cached for ten seconds in all, elsewhere; tokenTTL only
// makes watches that are authenticated again share one review.
const (
	allowedTTL = 10 * time.Second
	deniedTTL  = 5 * time.Second
	tokenTTL   = 2 * time.Second
)

// retries are those of a review. A client retries a request that fails.
var retries = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 2}

// Paths of the reviews.
const (
	tokenReviews  = "/apis/authentication.k8s.io/v1/tokenreviews"
	accessReviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
)

// loadUpstream reads the current context of a kubeconfig; "" is the service account of the pod that this
// process runs in. The paths in the result are absolute.
func loadUpstream(kubeconfig string) (*clientcmdapi.Config, error) {
	if kubeconfig == "" {
		in, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("relay: %w", err)
		}
		return podConfig(in), nil
	}
	loaded, err := (&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}).Load()
	if err == nil {
		err = clientcmdapi.MinifyConfig(loaded)
	}
	if err != nil {
		return nil, fmt.Errorf("relay: kubeconfig %s: %w", kubeconfig, err)
	}
	return loaded, nil
}

// podConfig returns the configuration of a pod as a kubeconfig, which names the file of the token: the kubelet
// replaces its content.
func podConfig(in *rest.Config) *clientcmdapi.Config {
	const name = "pod"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: in.Host, CertificateAuthority: in.CAFile}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{TokenFile: in.BearerTokenFile}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	return config
}

// loadRights returns the authentication and authorization of a relay, by upstream, a result of
// loadUpstream. It writes kubeconfigs into dir, which others must not be able to read. clientCAFile may be
// "". The context is that of [auth.Load].
func loadRights(ctx context.Context, dir string, upstream *clientcmdapi.Config, clientCAFile string, anonymous bool) (*auth.Auth, error) {
	authentication := options.NewBuiltInAuthenticationOptions().WithAnonymous().WithClientCert().WithWebHook()
	authentication.TokenSuccessCacheTTL = 0 // package auth has its own
	authentication.Anonymous.Allow = anonymous
	authentication.ClientCert.ClientCA = clientCAFile
	tokens := authentication.WebHook
	tokens.Version, tokens.CacheTTL, tokens.RetryBackoff = "v1", tokenTTL, &retries
	authorization := options.NewBuiltInAuthorizationOptions()
	authorization.Modes, authorization.WebhookVersion, authorization.WebhookRetryBackoff = []string{modes.ModeWebhook}, "v1", &retries
	authorization.WebhookCacheAuthorizedTTL, authorization.WebhookCacheUnauthorizedTTL = allowedTTL, deniedTTL
	var err error
	if tokens.ConfigFile, err = writeWebhook(dir, "tokenreviews.kubeconfig", upstream, tokenReviews); err != nil {
		return nil, err
	}
	if authorization.WebhookConfigFile, err = writeWebhook(dir, "subjectaccessreviews.kubeconfig", upstream, accessReviews); err != nil {
		return nil, err
	}
	return auth.Load(ctx, auth.Config{Authentication: authentication, Authorization: authorization})
}

// writeWebhook writes the kubeconfig of a webhook at a path of the upstream, and returns its file.
func writeWebhook(dir, name string, upstream *clientcmdapi.Config, path string) (string, error) {
	webhook := upstream.DeepCopy()
	current := webhook.Contexts[webhook.CurrentContext]
	user, cluster := webhook.AuthInfos[current.AuthInfo], webhook.Clusters[current.Cluster]
	if cluster == nil {
		return "", errors.New("relay: the kubeconfig of the upstream names no cluster")
	}
	if user != nil && user.Impersonate != "" {
		return "", errors.New("relay: the kubeconfig of the upstream impersonates a user, and cannot impersonate others")
	}
	cluster.Server = strings.TrimRight(cluster.Server, "/") + path
	file := filepath.Join(dir, name)
	if err := clientcmd.WriteToFile(*webhook, file); err != nil { // only its owner may read it
		return "", fmt.Errorf("relay: %w", err)
	}
	return file, nil
}
