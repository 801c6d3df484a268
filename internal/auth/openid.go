package auth

import (
	"github.com/emicklei/go-restful/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/routes"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// OpenIDPaths lists the paths that Auth.OpenID serves. A path that ends in "/" includes all paths below
// it. There are no documents below it: upstream's router refuses these requests.
func OpenIDPaths() []string {
	config, keys := serviceaccount.OpenIDConfigPath, serviceaccount.JWKSPath
	return []string{config, config + "/", keys, keys + "/"}
}

// loadOpenID prepares the OpenID provider's metadata. If the issuer is not an https URL, there is none
// (kubernetes pkg/controlplane/apiserver/server.go).
func (a *Auth) loadOpenID(c Config) error {
	if c.Authentication.ServiceAccounts == nil || a.keys == nil {
		return nil
	}
	accounts := c.Authentication.ServiceAccounts
	metadata, err := serviceaccount.NewOpenIDMetadataProvider(accounts.Issuers[0], accounts.JWKSURI, c.ExternalAddress, a.keys)
	if err != nil {
		klog.InfoS("Not serving OpenID metadata of service-account tokens", "reason", err)
		return nil
	}
	container := restful.NewContainer()
	container.ServiceErrorHandler(refuse)
	routes.NewOpenIDMetadataServer(metadata).Install(container)
	a.OpenID = container
	return nil
}

// refuse answers requests that the router does not route, like apiserver pkg/server/handler.go.
func refuse(err restful.ServiceError, req *restful.Request, resp *restful.Response) {
	status := apierrors.NewGenericServerResponse(err.Code, "", schema.GroupResource{}, "", err.Message, 0, false)
	responsewriters.ErrorNegotiated(status, legacyscheme.Codecs, schema.GroupVersion{}, resp.ResponseWriter, req.Request)
}
