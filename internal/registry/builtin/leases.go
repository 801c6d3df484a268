package builtin

import (
	"net"
	"path"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apireconcilers "k8s.io/apiserver/pkg/reconcilers"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
)

//lint:file-ignore SA1019 Endpoints are deprecated, but kube-apiserver and its clients still write them.

const (
	masterLeases = "/masterleases"
	peerLeases   = "/peerserverleases"
)

// leaseRecords has one record for each living API server of the cluster, which expires ttl after its refresh.
// The records are kube-apiserver's, so that Larders and kube-apiservers find each other.
type leaseRecords struct {
	storage storage.Interface
	prefix  string // of the keys
	ttl     time.Duration
}

func (l *leaseRecords) key(name string) string { return path.Join(l.prefix, name) }

// get returns a record, empty if there is none.
func (l *leaseRecords) get(name string) (*corev1.Endpoints, error) {
	ctx, cancel := recordContext()
	defer cancel()
	record := &corev1.Endpoints{}
	err := l.storage.Get(ctx, l.key(name), storage.GetOptions{IgnoreNotFound: true}, record)
	return record, err
}

// refresh adds or refreshes a record, whose contents change sets, and returns it.
func (l *leaseRecords) refresh(name string, change func(*corev1.Endpoints)) (*corev1.Endpoints, error) {
	update := func(input runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		record := input.(*corev1.Endpoints)
		change(record)
		// The storage skips an update that changes nothing, and the TTL would not be renewed.
		record.Generation++
		ttl := uint64(l.ttl / time.Second)
		return record, &ttl, nil
	}
	ctx, cancel := recordContext()
	defer cancel()
	record := &corev1.Endpoints{}
	err := l.storage.GuaranteedUpdate(ctx, l.key(name), record, true, nil, update, nil)
	return record, err
}

// RemoveLease removes the record of a server.
func (l *leaseRecords) RemoveLease(name string) error {
	ctx, cancel := recordContext()
	defer cancel()
	return l.storage.Delete(ctx, l.key(name), &corev1.Endpoints{}, nil, rest.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
}

// Destroy implements upstream's interfaces of leases.
func (l *leaseRecords) Destroy() {}

// Leases lists the addresses of the living API servers, from which the endpoints of the kubernetes service are
// made (kubernetes pkg/controlplane/reconcilers/lease.go).
type Leases struct {
	leaseRecords

	mu      sync.Mutex
	written map[string]string // by address, the revision of this server's last refresh
}

var _ reconcilers.Leases = (*Leases)(nil)

// ListLeases returns the addresses of all living servers.
func (l *Leases) ListLeases() ([]string, error) {
	ctx, cancel := recordContext()
	defer cancel()
	list := &corev1.EndpointsList{}
	err := l.storage.GetList(ctx, l.prefix, storage.ListOptions{
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
	record, err := l.refresh(ip, func(record *corev1.Endpoints) {
		record.Subsets = []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: ip}}}}
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written[ip] = record.ResourceVersion
	return nil
}

// RefreshedByOther reports whether another process refreshed the record of ip last: a server at the same
// address, or an earlier process of this server.
func (l *Leases) RefreshedByOther(ip string) (bool, error) {
	record, err := l.get(ip)
	if err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return record.ResourceVersion != "" && record.ResourceVersion != l.written[ip], nil
}

// PeerLeases has the addresses at which the API servers of the cluster reach each other, by the names of the
// servers (apiserver pkg/reconcilers/peer_endpoint_lease.go).
type PeerLeases struct {
	leaseRecords
	stopped atomic.Bool
}

var _ apireconcilers.PeerEndpointLeaseReconciler = (*PeerLeases)(nil)

// GetEndpoint returns the host and port of a server, "" if there is no record.
func (l *PeerLeases) GetEndpoint(server string) (string, error) {
	record, err := l.get(server)
	if err != nil || len(record.Subsets) == 0 || len(record.Subsets[0].Addresses) == 0 || len(record.Subsets[0].Ports) == 0 {
		return "", err
	}
	subset := record.Subsets[0]
	return net.JoinHostPort(subset.Addresses[0].IP, strconv.Itoa(int(subset.Ports[0].Port))), nil
}

// UpdateLease adds or refreshes the record of a server.
func (l *PeerLeases) UpdateLease(server, ip string, ports []corev1.EndpointPort) error {
	if l.stopped.Load() {
		return nil
	}
	_, err := l.refresh(server, func(record *corev1.Endpoints) {
		record.Subsets = []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: ip}}, Ports: ports}}
		metav1.SetMetaDataLabel(&record.ObjectMeta, apireconcilers.APIServerIdentityLabel, server)
	})
	return err
}

// StopReconciling makes later calls of UpdateLease do nothing.
func (l *PeerLeases) StopReconciling() { l.stopped.Store(true) }
