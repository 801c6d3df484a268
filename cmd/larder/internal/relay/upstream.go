package relay

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/httpapi"
	"github.com/larder-io/larder/httpapi/relay"
	"github.com/larder-io/larder/internal/auth"
)

// Upstream is an API server whose objects a relay caches.
type Upstream struct {
	// Name is "" for the only upstream, which is served at the root. Named upstreams are served below /clusters/{name}.
	Name string
	// Kubeconfig has the address of the upstream and the relay's own credentials there. "" means the cluster in which
	// the relay runs.
	Kubeconfig string
	// ClientCAFile has the CAs of the client certificates of the upstream's users. "" accepts no certificates.
	ClientCAFile string
}

// ParseUpstreams parses the flags --upstream and --client-ca-file: one KUBECONFIG and FILE, or NAME=KUBECONFIG and
// NAME=FILE for each of several upstreams. Without kubeconfigs, the upstream is the cluster in which the relay runs.
func ParseUpstreams(kubeconfigs, clientCAs []string) (all []Upstream, err error) {
	if len(kubeconfigs) == 0 {
		kubeconfigs = []string{""}
	}
	at := make(map[string]int)
	for i, text := range kubeconfigs {
		name, file := parseNamed(text)
		if _, twice := at[name]; twice || name == "" && len(kubeconfigs) > 1 {
			return nil, fmt.Errorf("--upstream %s: each of several upstreams needs its own name, as in NAME=KUBECONFIG", text)
		}
		at[name] = i
		all = append(all, Upstream{Name: name, Kubeconfig: file})
	}
	for _, text := range clientCAs {
		name, file := parseNamed(text)
		i, known := at[name]
		if !known || all[i].ClientCAFile != "" {
			return nil, fmt.Errorf("--client-ca-file %s: needs the name of an upstream, each at most once", text)
		}
		all[i].ClientCAFile = file
	}
	return all, nil
}

// parseNamed splits NAME=FILE. Text before an equals sign that cannot be a name belongs to the file.
func parseNamed(text string) (name, file string) {
	name, file, ok := strings.Cut(text, "=")
	if !ok || len(validation.IsDNS1123Label(name)) > 0 {
		return "", text
	}
	return name, file
}

// upstream is the state of a relay for one of its upstreams.
type upstream struct {
	Upstream
	logger *slog.Logger
	rest   *rest.Config
	client *http.Client // has the relay's own credentials
	base   *url.URL
	auth   *auth.Auth
	relay  *relay.Relay
	http   *httpapi.Server
}

// connect creates the client, authentication and authorization of an upstream. It sends no request, so an unreachable
// upstream does not delay others.
func (s *Server) connect(ctx context.Context, of Upstream) (*upstream, error) {
	u := &upstream{Upstream: of, logger: s.config.Logger}
	if u.Name != "" {
		u.logger = u.logger.With("upstream", u.Name)
	}
	var err error
	if u.rest, err = loadUpstream(u.Kubeconfig); err != nil {
		return nil, err
	}
	u.rest.UserAgent = "larder-relay"
	if u.client, err = clientFor(u.rest); err != nil {
		return nil, err
	}
	if u.base, _, err = rest.DefaultServerUrlFor(u.rest); err != nil {
		return nil, fmt.Errorf("relay: upstream: %w", err)
	}
	u.auth, err = loadRights(ctx, u.client, u.base, u.ClientCAFile)
	return u, err
}

// clientFor returns a client with the relay's own credentials.
func clientFor(config *rest.Config) (*http.Client, error) {
	transport, err := relay.TransportFor(config)
	return &http.Client{Transport: noRedirects{transport}}, err
}

// noRedirects rejects redirects, because the transport would send the relay's credentials to any server.
type noRedirects struct{ http.RoundTripper }

func (n noRedirects) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := n.RoundTripper.RoundTrip(req)
	if err == nil && resp.StatusCode/100 == 3 {
		resp.Body.Close()
		return nil, fmt.Errorf("relay: the upstream responds to %s with a redirect to %q", req.URL.Path, resp.Header.Get("Location"))
	}
	return resp, err
}

// warnOfMissingPermissions waits until the upstream responds, and logs the permissions that the relay lacks. It returns when ctx ends.
func (u *upstream) warnOfMissingPermissions(ctx context.Context) error {
	client, err := kubernetes.NewForConfigAndClient(u.rest, u.client)
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	_ = wait.PollUntilContextCancel(ctx, time.Minute, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		lines, err := missingPermissions(ctx, client.AuthorizationV1(), u.ClientCAFile != "")
		if err != nil {
			u.logger.Warn("cannot ask the upstream for the relay's rights", "error", err)
		}
		for _, line := range lines {
			u.logger.Warn(line)
		}
		return err == nil, nil
	})
	<-ctx.Done()
	return nil
}
