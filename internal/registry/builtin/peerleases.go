package builtin

import (
	"context"
	"net"
	"path"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/reconcilers"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
)

//lint:file-ignore SA1019 Endpoints are deprecated, but kube-apiserver and its clients still write them.

const peerLeases = "/peerserverleases"

// PeerLeases has the addresses at which the API servers of the cluster reach each other: one record per
// server, which expires unless the server refreshes it. The records are kube-apiserver's (apiserver
// pkg/reconcilers/peer_endpoint_lease.go), so that Larders and kube-apiservers find each other.
type PeerLeases struct {
	storage storage.Interface
	ttl     time.Duration
	stopped atomic.Bool
}

var _ reconcilers.PeerEndpointLeaseReconciler = (*PeerLeases)(nil)

// GetEndpoint returns the host and port of a server, "" if there is no record.
func (l *PeerLeases) GetEndpoint(server string) (string, error) {
	record := &corev1.Endpoints{}
	if err := l.storage.Get(context.Background(), l.key(server), storage.GetOptions{IgnoreNotFound: true}, record); err != nil {
		return "", err
	}
	if len(record.Subsets) == 0 || len(record.Subsets[0].Addresses) == 0 || len(record.Subsets[0].Ports) == 0 {
		return "", nil
	}
	subset := record.Subsets[0]
	return net.JoinHostPort(subset.Addresses[0].IP, strconv.Itoa(int(subset.Ports[0].Port))), nil
}

// UpdateLease adds or refreshes the record of a server.
func (l *PeerLeases) UpdateLease(server, ip string, ports []corev1.EndpointPort) error {
	if l.stopped.Load() {
		return nil
	}
	refresh := func(input runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		record := input.(*corev1.Endpoints)
		record.Subsets = []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: ip}}, Ports: ports}}
		if record.Labels == nil {
			record.Labels = make(map[string]string)
		}
		record.Labels[reconcilers.APIServerIdentityLabel] = server
		// The storage skips an update that changes nothing, and the TTL would not be renewed.
		record.Generation++
		ttl := uint64(l.ttl / time.Second)
		return record, &ttl, nil
	}
	return l.storage.GuaranteedUpdate(context.Background(), l.key(server), &corev1.Endpoints{}, true, nil, refresh, nil)
}

// RemoveLease removes the record of a server.
func (l *PeerLeases) RemoveLease(server string) error {
	return l.storage.Delete(context.Background(), l.key(server), &corev1.Endpoints{}, nil, rest.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
}

// StopReconciling makes later calls of UpdateLease do nothing.
func (l *PeerLeases) StopReconciling() { l.stopped.Store(true) }

// Destroy implements upstream's interface of peer leases.
func (l *PeerLeases) Destroy() {}

func (l *PeerLeases) key(server string) string { return path.Join(peerLeases, server) }
