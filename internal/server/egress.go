package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
)

// egress reads --egress-selector-config-file. It returns nil if there is none.
func (u *Upstream) egress() (*egressselector.EgressSelector, error) {
	if u.EgressSelector.ConfigFile == "" {
		return nil, nil
	}
	var c genericapiserver.Config // of which ApplyTo sets this
	if err := u.EgressSelector.ApplyTo(&c); err != nil {
		return nil, err
	}
	return c.EgressSelector, nil
}

// dialer is how that part of the network is connected to; nil is directly.
func (s *Server) dialer(to egressselector.EgressType) utilnet.DialFunc {
	if s.egress == nil {
		return nil
	}
	dial, err := s.egress.Lookup(to.AsNetworkContext())
	if err != nil { // no type that there is
		return func(context.Context, string, string) (net.Conn, error) { return nil, err }
	}
	return dial
}

// dialEtcd is how etcd is connected to; nil is directly.
func (s *Server) dialEtcd() func(context.Context, string) (net.Conn, error) {
	dial := s.dialer(egressselector.Etcd)
	if dial == nil {
		return nil
	}
	return func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }
}

// proxyTransport carries requests to pods and services; nil is the registry's own.
func (s *Server) proxyTransport() http.RoundTripper {
	dial := s.dialer(egressselector.Cluster)
	if dial == nil {
		return nil
	}
	// They are reached by address: there is no name that a certificate could prove.
	return utilnet.SetTransportDefaults(&http.Transport{DialContext: dial, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}})
}
