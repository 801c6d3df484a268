package customresources

import (
	"context"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	client "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// acceptance is a client of definitions for upstream's controller of names. A status in which
// that accepts the names is written as established, too: what the controller of establishment
// would make of it in a second write, which would cost as much as the first (X2).
//
// Upstream writes twice so that its handler has seen that names are accepted before a client sees
// that the definition is established (status/naming_controller.go, calculateNamesAndConditions).
// Here a request waits until the informer has seen what the store holds (see [Extensions.find]).
type acceptance struct {
	client.CustomResourceDefinitionsGetter
}

// CustomResourceDefinitions implements client.CustomResourceDefinitionsGetter.
func (a acceptance) CustomResourceDefinitions() client.CustomResourceDefinitionInterface {
	return acceptedDefinitions{a.CustomResourceDefinitionsGetter.CustomResourceDefinitions()}
}

// acceptedDefinitions is what acceptance returns.
type acceptedDefinitions struct {
	client.CustomResourceDefinitionInterface
}

// UpdateStatus implements client.CustomResourceDefinitionInterface. definition is the caller's copy.
func (a acceptedDefinitions) UpdateStatus(ctx context.Context, definition *apiextensionsv1.CustomResourceDefinition, options metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	establishAccepted(definition)
	return a.CustomResourceDefinitionInterface.UpdateStatus(ctx, definition, options)
}

// establishAccepted establishes definition if its names are accepted, as upstream's
// establish/establishing_controller.go does. One that a webhook converts is left to that: it looks
// at the webhook's certificates.
func establishAccepted(definition *apiextensionsv1.CustomResourceDefinition) {
	if !apihelpers.IsCRDConditionTrue(definition, apiextensionsv1.NamesAccepted) ||
		apihelpers.IsCRDConditionTrue(definition, apiextensionsv1.Established) ||
		definition.Spec.Conversion != nil && definition.Spec.Conversion.Webhook != nil {
		return
	}
	apihelpers.SetCRDCondition(definition, apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue,
		Reason: "InitialNamesAccepted", Message: "the initial names have been accepted",
	})
}
