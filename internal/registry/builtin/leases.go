package builtin

import (
	"context"
	"path"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
)

//lint:file-ignore SA1019 Endpoints are deprecated, but kube-apiserver and its clients still write them.

const masterLeases = "/masterleases"

// Leases lists the living API servers of the cluster: one record per address, which expires unless its
// server refreshes it. The records are kube-apiserver's (kubernetes
// pkg/controlplane/reconcilers/lease.go), so that Larders and kube-apiservers publish one set of
// endpoints.
type Leases struct {
	storage storage.Interface
	ttl     time.Duration

	mu      sync.Mutex
	written map[string]string // by address, the revision of this server's last refresh
}

var _ reconcilers.Leases = (*Leases)(nil)

// newLeases returns the records in a storage. A record expires ttl after its refresh.
func newLeases(storage storage.Interface, ttl time.Duration) *Leases {
	return &Leases{storage: storage, ttl: ttl, written: make(map[string]string)}
}

// ListLeases returns the addresses of all living servers.
func (l *Leases) ListLeases() ([]string, error) {
	list := &corev1.EndpointsList{}
	err := l.storage.GetList(context.Background(), masterLeases, storage.ListOptions{
		ResourceVersion:      "0",
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		Predicate:            storage.Everything,
		Recursive:            true,
	}, list)
	if err != nil {
		return nil, err
	}
	ips := make([]string, 0, len(list.Items))
	for _, record := range list.Items {
		if s := record.Subsets; len(s) > 0 && len(s[0].Addresses) > 0 && s[0].Addresses[0].IP != "" {
			ips = append(ips, s[0].Addresses[0].IP)
		}
	}
	return ips, nil
}

// UpdateLease adds or refreshes the record of ip.
func (l *Leases) UpdateLease(ip string) error {
	refresh := func(input runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		record := input.(*corev1.Endpoints)
		record.Subsets = []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: ip}}}}
		// The storage skips an update that changes nothing, and the TTL would not be renewed.
		record.Generation++
		ttl := uint64(l.ttl / time.Second)
		return record, &ttl, nil
	}
	record := &corev1.Endpoints{}
	if err := l.storage.GuaranteedUpdate(context.Background(), l.key(ip), record, true, nil, refresh, nil); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written[ip] = record.ResourceVersion
	return nil
}

// Foreign reports whether another process refreshed the record of ip last: a server at the same
// address, or an earlier process of this server.
func (l *Leases) Foreign(ip string) (bool, error) {
	record := &corev1.Endpoints{}
	if err := l.storage.Get(context.Background(), l.key(ip), storage.GetOptions{IgnoreNotFound: true}, record); err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return record.ResourceVersion != "" && record.ResourceVersion != l.written[ip], nil
}

// RemoveLease removes the record of ip.
func (l *Leases) RemoveLease(ip string) error {
	return l.storage.Delete(context.Background(), l.key(ip), &corev1.Endpoints{}, nil, rest.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
}

// Destroy implements upstream's interface of leases.
func (l *Leases) Destroy() {}

func (l *Leases) key(ip string) string { return path.Join(masterLeases, ip) }
