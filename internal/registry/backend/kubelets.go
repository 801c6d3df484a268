package backend

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
)

// Kubelets is a ConnectionInfoGetter that wraps the transports of another one by [Transport].
type Kubelets struct {
	kubeletclient.ConnectionInfoGetter
}

// GetConnectionInfo implements kubeletclient.ConnectionInfoGetter.
func (k Kubelets) GetConnectionInfo(ctx context.Context, node types.NodeName) (*kubeletclient.ConnectionInfo, error) {
	info, err := k.ConnectionInfoGetter.GetConnectionInfo(ctx, node)
	if err != nil {
		return nil, err
	}
	limited := *info
	limited.Transport = Transport(info.Transport)
	limited.InsecureSkipTLSVerifyTransport = Transport(info.InsecureSkipTLSVerifyTransport)
	return &limited, nil
}
