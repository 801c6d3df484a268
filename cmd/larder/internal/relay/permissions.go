package relay

import (
	"context"
	"fmt"
	"path"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
)

// permission is a permission that a relay needs in the upstream.
type permission struct {
	verb, group, resource, subresource string
	without                            string // effect of a missing permission
}

var usualPermissions = []permission{
	{"create", "authentication.k8s.io", "tokenreviews", "", "no bearer token is accepted"},
	{"create", "authorization.k8s.io", "subjectaccessreviews", "", "nothing is served from a cache"},
	{"list", "apiextensions.k8s.io", "customresourcedefinitions", "", "requests for custom resources go through"},
	{"watch", "apiextensions.k8s.io", "customresourcedefinitions", "", "requests for custom resources go through"},
}

// impersonationPermissions are needed for users with client certificates. The resources users and groups belong to
// the core group (apiserver pkg/endpoints/filters/impersonation).
var impersonationPermissions = []permission{
	{"impersonate", "", "users", "", "users with client certificates are refused"},
	{"impersonate", "", "groups", "", "users with client certificates are refused"},
	{"impersonate", "authentication.k8s.io", "uids", "", "users with a UID cannot be impersonated"},
	{"impersonate", "authentication.k8s.io", "userextras", user.CredentialIDKey, "users with client certificates are refused"},
}

// missingPermissions asks the upstream for the relay's permissions, and returns a line of text for each missing one.
// certificates means that users may have client certificates.
func missingPermissions(ctx context.Context, client authorizationclient.SelfSubjectAccessReviewsGetter, certificates bool) (lines []string, err error) {
	needed := usualPermissions
	if certificates {
		needed = append(needed[:len(needed):len(needed)], impersonationPermissions...)
	}
	for _, p := range needed {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: p.verb, Group: p.group, Resource: p.resource, Subresource: p.subresource},
		}}
		result, err := client.SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("relay: cannot ask whether the relay may %s %s: %w", p.verb, p.resource, err)
		}
		if !result.Status.Allowed {
			lines = append(lines, fmt.Sprintf("the relay may not %s %q of API group %q in the upstream: %s",
				p.verb, path.Join(p.resource, p.subresource), p.group, p.without))
		}
	}
	return lines, nil
}
