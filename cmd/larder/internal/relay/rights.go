package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	tokenwebhook "k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	"k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/larder-io/larder/internal/auth"
)

// How long decisions of the upstream hold. Package auth caches accepted tokens for ten seconds. tokenTTL only makes
// watches that are authenticated again share one review.
const (
	allowedTTL    = 10 * time.Second
	deniedTTL     = 5 * time.Second
	tokenTTL      = 2 * time.Second
	reviewTimeout = 30 * time.Second // as in kube-apiserver
	maxReview     = 1 << 20          // bytes of a response, which repeats the user's groups
)

// retries configures the retries of a review. A client retries a request that fails.
var retries = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 2}

// Paths of the reviews.
const (
	tokenReviews  = "/apis/authentication.k8s.io/v1/tokenreviews"
	accessReviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
)

// loadUpstream reads the current context of a kubeconfig. "" means the service account of the pod in which this
// process runs.
func loadUpstream(kubeconfig string) (config *rest.Config, err error) {
	if kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else if loaded, failed := (&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}).Load(); failed != nil {
		err = failed
	} else if err = clientcmdapi.MinifyConfig(loaded); err == nil {
		config, err = clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("relay: kubeconfig %q: %w", kubeconfig, err)
	}
	return config, nil
}

// loadRights returns the authentication and authorization of a relay, which send reviews to the upstream at base.
// client has the relay's own credentials there. clientCAFile may be "". ctx is used as in [auth.Load].
func loadRights(ctx context.Context, client *http.Client, base *url.URL, clientCAFile string) (*auth.Auth, error) {
	authentication := options.NewBuiltInAuthenticationOptions().WithAnonymous().WithClientCert()
	authentication.TokenSuccessCacheTTL = 0 // package auth has its own
	authentication.ClientCert.ClientCA = clientCAFile
	authorization := options.NewBuiltInAuthorizationOptions()
	authorization.Modes, authorization.WebhookConfigFile = []string{modes.ModeWebhook}, "none" // AccessReviews replaces the file
	at := func(path string) *rest.Config {
		return &rest.Config{Host: base.JoinPath(path).String(), Transport: reviewTransport{client.Transport}, Timeout: reviewTimeout, QPS: -1}
	}
	tokens, err := tokenwebhook.New(at(tokenReviews), "v1", nil, retries)
	if err != nil {
		return nil, fmt.Errorf("relay: token reviews: %w", err)
	}
	counts := struct {
		metrics.NoopRequestMetrics
		metrics.WebhookMetrics
		authorizationcel.NoopMatcherMetrics
	}{WebhookMetrics: metrics.NewWebhookMetrics()}
	access, err := webhook.New(at(accessReviews), "v1", allowedTTL, deniedTTL, retries, authorizer.DecisionNoOpinion, nil, "default", counts, authorizationcel.NewDefaultCompiler())
	if err != nil {
		return nil, fmt.Errorf("relay: access reviews: %w", err)
	}
	return auth.Load(ctx, auth.Config{
		Authentication: authentication, Authorization: authorization,
		TokenReviews: tokencache.New(tokens, false, tokenTTL, tokenTTL), AccessReviews: access,
	})
}

// reviewTransport sends reviews. It rejects a response that is not a review, such as the page of a proxy in front of the
// upstream.
type reviewTransport struct{ next http.RoundTripper }

func (r reviewTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.next.RoundTrip(req)
	if err != nil || resp.StatusCode >= 300 {
		return resp, err
	}
	defer resp.Body.Close()
	var is struct{ APIVersion, Kind string }
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReview))
	if err != nil || json.Unmarshal(body, &is) != nil || is.Kind != "Status" && !strings.HasSuffix(req.URL.Path, strings.ToLower("/apis/"+is.APIVersion+"/"+is.Kind+"s")) {
		return nil, fmt.Errorf("relay: the upstream responds to a review with %q, kind %q (%v)", resp.Header.Get("Content-Type"), is.Kind, err)
	}
	resp.Body = io.NopCloser(strings.NewReader(string(body)))
	return resp, nil
}
