package request

import (
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Attributes are what an authorizer, the audit policy and flow control are asked about: a
// Request and who sent it (apiserver pkg/endpoints/filters/authorization.go). Few
// authorizers look at selectors, so these are parsed when one does.
type Attributes struct {
	authorizer.AttributesRecord
	Request *Request
}

// Fill makes a the question whether u may do what r says.
func (a *Attributes) Fill(r *Request, u user.Info) {
	a.Request = r
	a.AttributesRecord = authorizer.AttributesRecord{
		User:            u,
		Verb:            r.Verb,
		Namespace:       r.Namespace,
		APIGroup:        r.Group,
		APIVersion:      r.Version,
		Resource:        r.Resource,
		Subresource:     r.Subresource,
		Name:            r.Name,
		ResourceRequest: r.IsResourceRequest,
		Path:            r.Path,
	}
}

// GetFieldSelector implements authorizer.Attributes.
func (a *Attributes) GetFieldSelector() (fields.Requirements, error) {
	if a.Request.FieldSelector == "" {
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

// GetLabelSelector implements authorizer.Attributes.
func (a *Attributes) GetLabelSelector() (labels.Requirements, error) {
	if a.Request.LabelSelector == "" {
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
