package admission

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/openapi"
)

var errUnreachable = errors.New("the server has stopped")

// unreachable is the discovery of a server that has stopped.
type unreachable struct{ discovery.DiscoveryInterface }

func (unreachable) OpenAPIV3() openapi.Client                  { return nil }
func (u unreachable) WithLegacy() discovery.DiscoveryInterface { return u }
func (unreachable) ServerGroups() (groups *metav1.APIGroupList, err error) {
	return nil, errUnreachable
}

// TestStoppingServersHideErrors checks that an error of the list of schemas is returned only until the server stops.
func TestStoppingServersHideErrors(t *testing.T) {
	end := make(chan struct{})
	client := lazyDiscovery{unreachable{}, func() bool { return true }, end}.OpenAPIV3()
	if _, err := client.Paths(); !errors.Is(err, errUnreachable) {
		t.Errorf("got error %v, want %v", err, errUnreachable)
	}
	close(end)
	if _, err := client.Paths(); err != nil {
		t.Errorf("after the end: got error %v", err)
	}
}
