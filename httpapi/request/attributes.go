package request

import (
	"slices"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// Attributes are what an authorizer, the audit policy and flow control are asked about: what
// is asked for and who asks (apiserver pkg/endpoints/filters/authorization.go). Few
// authorizers look at selectors, so these are parsed when one does.
type Attributes struct {
	User    user.Info
	Request *Action
}

var _ authorizer.Attributes = (*Attributes)(nil)

// GetUser implements authorizer.Attributes.
func (a *Attributes) GetUser() user.Info { return a.User }

// GetVerb implements authorizer.Attributes.
func (a *Attributes) GetVerb() string { return a.Request.Verb }

// IsReadOnly implements authorizer.Attributes.
func (a *Attributes) IsReadOnly() bool {
	switch a.Request.Verb {
	case "get", "list", "watch":
		return true
	}
	return false
}

// GetNamespace implements authorizer.Attributes.
func (a *Attributes) GetNamespace() string { return a.Request.Namespace }

// GetResource implements authorizer.Attributes.
func (a *Attributes) GetResource() string { return a.Request.Resource }

// GetSubresource implements authorizer.Attributes.
func (a *Attributes) GetSubresource() string { return a.Request.Subresource }

// GetName implements authorizer.Attributes.
func (a *Attributes) GetName() string { return a.Request.Name }

// GetAPIGroup implements authorizer.Attributes.
func (a *Attributes) GetAPIGroup() string { return a.Request.Group }

// GetAPIVersion implements authorizer.Attributes.
func (a *Attributes) GetAPIVersion() string { return a.Request.Version }

// IsResourceRequest implements authorizer.Attributes.
func (a *Attributes) IsResourceRequest() bool { return a.Request.IsResourceRequest }

// GetPath implements authorizer.Attributes.
func (a *Attributes) GetPath() string { return a.Request.Path }

// Clone returns a copy of r that may be kept after the Request has ended. It has its own Parts:
// those of r keep the whole Request in memory.
func (r *Action) Clone() *Action {
	kept := *r
	kept.Parts = slices.Clone(r.Parts)
	return &kept
}

// GetFieldSelector implements authorizer.Attributes.
func (a *Attributes) GetFieldSelector() (fields.Requirements, error) {
	if a.Request.FieldSelector == "" || !authorizesSelectors() {
		return nil, nil
	}
	selector, err := fields.ParseSelector(a.Request.FieldSelector)
	if err != nil {
		return nil, err
	}
	if requirements := selector.Requirements(); len(requirements) > 0 {
		return requirements, nil
	}
	return nil, nil
}

// authorizesSelectors reports whether authorizers may look at selectors.
func authorizesSelectors() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.AuthorizeWithSelectors)
}

// GetLabelSelector implements authorizer.Attributes.
func (a *Attributes) GetLabelSelector() (labels.Requirements, error) {
	if a.Request.LabelSelector == "" || !authorizesSelectors() {
		return nil, nil
	}
	selector, err := labels.Parse(a.Request.LabelSelector)
	if err != nil {
		return nil, err
	}
	if requirements, _ := selector.Requirements(); len(requirements) > 0 {
		return requirements, nil
	}
	return nil, nil
}
