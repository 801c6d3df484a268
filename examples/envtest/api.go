package boxes

import (
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/conversion"
)

// Versions of the API.
var (
	V1 = schema.GroupVersion{Group: "example.larder.io", Version: "v1"}
	V2 = schema.GroupVersion{Group: "example.larder.io", Version: "v2"}
)

// Box is a resource for which the controller creates a ConfigMap. Its storage version is v1.
type Box struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Size   int       `json:"size"`
	Status BoxStatus `json:"status,omitempty"`
}

// BoxStatus is the progress of the controller.
type BoxStatus struct {
	Packed bool `json:"packed,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (b *Box) DeepCopyObject() runtime.Object {
	out := *b
	b.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// Hub marks the version to and from which others are converted.
func (*Box) Hub() {}

// BoxList is a list of Boxes.
type BoxList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Box `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *BoxList) DeepCopyObject() runtime.Object {
	out := &BoxList{TypeMeta: l.TypeMeta}
	l.DeepCopyInto(&out.ListMeta)
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*Box))
	}
	return out
}

// BoxV2 is a Box in version v2. Its size is a word.
type BoxV2 struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Volume string    `json:"volume"`
	Status BoxStatus `json:"status,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (b *BoxV2) DeepCopyObject() runtime.Object {
	out := *b
	b.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// ConvertTo implements conversion.Convertible.
func (b *BoxV2) ConvertTo(hub conversion.Hub) error {
	to := hub.(*Box)
	size, err := strconv.Atoi(b.Volume)
	if err != nil {
		return fmt.Errorf("volume: %w", err)
	}
	to.ObjectMeta, to.Size, to.Status = b.ObjectMeta, size, b.Status
	return nil
}

// ConvertFrom implements conversion.Convertible.
func (b *BoxV2) ConvertFrom(hub conversion.Hub) error {
	from := hub.(*Box)
	b.ObjectMeta, b.Volume, b.Status = from.ObjectMeta, strconv.Itoa(from.Size), from.Status
	return nil
}

// AddToScheme registers the types.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypeWithName(V1.WithKind("Box"), &Box{})
	s.AddKnownTypeWithName(V1.WithKind("BoxList"), &BoxList{})
	s.AddKnownTypeWithName(V2.WithKind("Box"), &BoxV2{})
	metav1.AddToGroupVersion(s, V1)
	metav1.AddToGroupVersion(s, V2)
	return nil
}
