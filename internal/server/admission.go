package server

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// newAdmission returns what every write passes: objects are made only in
// namespaces that exist and are not ending, and the system namespaces stay.
func newAdmission(client kubernetes.Interface, factory informers.SharedInformerFactory) (admission.Interface, error) {
	immortal := sets.New(metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic)
	plugin, err := lifecycle.NewLifecycle(immortal)
	if err != nil {
		return nil, fmt.Errorf("server: admission: %w", err)
	}
	plugin.SetExternalKubeClientSet(client)
	plugin.SetExternalKubeInformerFactory(factory)
	if err := plugin.ValidateInitialization(); err != nil {
		return nil, fmt.Errorf("server: admission: %w", err)
	}
	return admission.NewChainHandler(plugin), nil
}
