package server

import (
	"context"
	"net"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
)

// egressSelector reads --egress-selector-config-file. It returns nil if there is none.
func (c *Config) egressSelector() (*egressselector.EgressSelector, error) {
	var target genericapiserver.Config // ApplyTo sets only its EgressSelector
	err := c.EgressSelector.ApplyTo(&target)
	return target.EgressSelector, err
}

// egress connects to other parts of the network through proxies, or directly if it is empty.
type egress struct{ *egressselector.EgressSelector }

// dialer returns the function that connects to that part of the network; nil to connect
// directly.
func (e egress) dialer(to egressselector.EgressType) utilnet.DialFunc {
	if e.EgressSelector == nil {
		return nil
	}
	dial, err := e.Lookup(to.AsNetworkContext())
	if err != nil { // an unknown type
		return func(context.Context, string, string) (net.Conn, error) { return nil, err }
	}
	return dial
}

// tcpDialer is dialer for callers that use only TCP.
func (e egress) tcpDialer(to egressselector.EgressType) func(context.Context, string) (net.Conn, error) {
	dial := e.dialer(to)
	if dial == nil {
		return nil
	}
	return func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }
}
