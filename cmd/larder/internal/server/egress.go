package server

import (
	"context"
	"net"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
)

// egressSelector reads --egress-selector-config-file. It returns nil if the flag is not set.
func (c *Config) egressSelector() (*egressselector.EgressSelector, error) {
	var target genericapiserver.Config // ApplyTo sets only its EgressSelector
	if err := c.EgressSelector.ApplyTo(&target); err != nil || target.EgressSelector == nil {
		return nil, err
	}
	dialers := make(map[egressselector.EgressType]utilnet.DialFunc)
	for _, to := range []egressselector.EgressType{egressselector.ControlPlane, egressselector.Etcd, egressselector.Cluster} {
		if dial, err := target.EgressSelector.Lookup(to.AsNetworkContext()); err != nil {
			return nil, err
		} else if dial != nil {
			dialers[to] = cancelable(dial)
		}
	}
	return egressselector.NewEgressSelectorWithMap(dialers), nil
}

// cancelable wraps dial in a function that returns when its context ends. Upstream's dialers wait for a proxy's
// response to CONNECT without a limit. Such a dial continues in the background, and its connection is closed.
func cancelable(dial utilnet.DialFunc) utilnet.DialFunc {
	type result struct {
		conn net.Conn
		err  error
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		dialed := make(chan result)
		go func() {
			conn, err := dial(ctx, network, address)
			select {
			case dialed <- result{conn, err}:
			case <-ctx.Done():
				if err == nil {
					conn.Close()
				}
			}
		}()
		select {
		case r := <-dialed:
			return r.conn, r.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// egress connects to other networks through proxies, or directly if it is empty.
type egress struct{ *egressselector.EgressSelector }

// dialer returns the function that connects to a network, nil to connect directly.
func (e egress) dialer(to egressselector.EgressType) utilnet.DialFunc {
	if e.EgressSelector == nil {
		return nil
	}
	dial, _ := e.Lookup(to.AsNetworkContext()) // never fails
	return dial
}

// tcpDialer is like dialer, for callers that use only TCP.
func (e egress) tcpDialer(to egressselector.EgressType) func(context.Context, string) (net.Conn, error) {
	dial := e.dialer(to)
	if dial == nil {
		return nil
	}
	return func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }
}
