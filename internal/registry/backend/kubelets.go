package backend

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
)

// Kubelets returns by with limited transports.
func Kubelets(by kubeletclient.ConnectionInfoGetter) kubeletclient.ConnectionInfoGetter {
	return kubelets{by}
}

type kubelets struct {
	by kubeletclient.ConnectionInfoGetter
}

// GetConnectionInfo implements kubeletclient.ConnectionInfoGetter.
func (k kubelets) GetConnectionInfo(ctx context.Context, node types.NodeName) (*kubeletclient.ConnectionInfo, error) {
	info, err := k.by.GetConnectionInfo(ctx, node)
	if err != nil {
		return nil, err
	}
	bound := *info
	bound.Transport = Transport(info.Transport)
	bound.InsecureSkipTLSVerifyTransport = Transport(info.InsecureSkipTLSVerifyTransport)
	return &bound, nil
}
