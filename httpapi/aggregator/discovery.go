package aggregator

import (
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
)

// ServeGroups serves /apis: the group of APIServices, then the groups that have
// APIServices, by their priorities. It follows kube-aggregator pkg/apiserver/handler_apis.go.
func (a *Aggregator) ServeGroups(w http.ResponseWriter, req *http.Request) {
	all, err := a.lister.List(labels.Everything())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	gv := apiregistrationv1.SchemeGroupVersion
	own := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
	list := &metav1.APIGroupList{Groups: []metav1.APIGroup{
		{Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{own}, PreferredVersion: own},
	}}
	for _, members := range helper.SortedByGroupAndVersion(all) {
		if members[0].Spec.Group != "" {
			list.Groups = append(list.Groups, groupOf(members))
		}
	}
	write(w, req, list)
}

// Group returns the handler that describes the group at path, nil if there is none.
func (a *Aggregator) Group(path string) http.Handler {
	name, ok := strings.CutPrefix(path, "/apis/")
	name = strings.TrimSuffix(name, "/")
	if !ok || name == "" || strings.Contains(name, "/") {
		return nil
	}
	all, err := a.lister.List(labels.Everything())
	if err != nil {
		return nil
	}
	all = slices.DeleteFunc(all, func(s *apiregistrationv1.APIService) bool { return s.Spec.Group != name })
	if len(all) == 0 {
		return nil
	}
	document := groupOf(helper.SortedByGroupAndVersion(all)[0])
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { write(w, req, &document) })
}

// ListedPaths lists the paths of the groups and their versions.
func (a *Aggregator) ListedPaths() []string {
	all, err := a.lister.List(labels.Everything())
	if err != nil {
		return nil
	}
	var paths []string
	for _, s := range all {
		if s.Name != coreName {
			paths = append(paths, "/apis/"+s.Spec.Group, "/apis/"+s.Spec.Group+"/"+s.Spec.Version)
		}
	}
	return paths
}

// groupOf describes a group by its APIServices, the preferred version first.
func groupOf(members []*apiregistrationv1.APIService) metav1.APIGroup {
	group := metav1.APIGroup{Name: members[0].Spec.Group}
	for _, member := range members {
		gv := schema.GroupVersion{Group: member.Spec.Group, Version: member.Spec.Version}
		group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version})
	}
	group.PreferredVersion = group.Versions[0]
	return group
}

func write(w http.ResponseWriter, req *http.Request, document runtime.Object) {
	responsewriters.WriteObjectNegotiated(aggregatorscheme.Codecs, negotiation.DefaultEndpointRestrictions,
		schema.GroupVersion{}, w, req, http.StatusOK, document, false)
}
