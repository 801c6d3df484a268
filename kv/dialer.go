package kv

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
)

// dialer connects to members for HTTP/2, past etcd's client.
type dialer struct {
	members []*url.URL
	tls     *tls.Config // nil: not encrypted
}

// newDialer returns nil if it cannot reach a member: one with a unix socket, for example.
func newDialer(endpoints []string, config *tls.Config) *dialer {
	d := &dialer{tls: config}
	scheme := "http"
	if config != nil {
		scheme = "https"
	}
	for _, endpoint := range endpoints {
		member, err := url.Parse(endpoint)
		if err != nil || member.Scheme != scheme || member.Port() == "" {
			return nil
		}
		d.members = append(d.members, member)
	}
	return d
}

func (d *dialer) dial(ctx context.Context, member *url.URL) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", member.Host)
	if err != nil || d.tls == nil {
		return conn, err
	}
	config := d.tls.Clone()
	config.NextProtos = []string{"h2"}
	if config.ServerName == "" {
		config.ServerName = member.Hostname()
	}
	encrypted := tls.Client(conn, config)
	if err := encrypted.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return encrypted, nil
}
