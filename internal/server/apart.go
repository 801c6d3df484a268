package server

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/server/options"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/kv"
)

// apart is a store that --etcd-servers-overrides names, of one resource or several.
type apart struct {
	keys    []string // its servers, in each order in which they were named
	servers []string
	store   *kv.Etcd
	tail    *kv.Tail
}

// openApart starts the stores of single resources; awaitApart waits for them.
func (s *Server) openApart(ctx context.Context) error {
	overrides, err := options.ParseEtcdServersOverrides(s.config.Upstream.Etcd.EtcdServersOverrides)
	if err != nil {
		return err
	}
	c := &s.config.Store
	bySet := make(map[string]*apart)
	for _, o := range overrides {
		set := slices.Sorted(slices.Values(o.Servers))
		a := bySet[strings.Join(set, ";")]
		if a == nil {
			a = &apart{servers: o.Servers}
			a.store, err = kv.NewExternal(kv.ExternalConfig{
				Endpoints: o.Servers, Prefix: c.Prefix, CompactionInterval: c.CompactionInterval, Logger: newLogger(),
				CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile, Observer: s.metrics.Observer(), Dial: s.dialEtcd(), LeaseReuse: s.config.Upstream.leaseReuse(),
			})
			if err != nil {
				return err
			}
			a.tail = kv.NewTail(kv.TailConfig{Store: a.store, Prefix: c.Prefix, Replay: c.ReplayRevisions, Logger: newLogger()})
			bySet[strings.Join(set, ";")] = a
			s.layers.Start(ctx, fmt.Sprintf("store of %s", o.GroupResource), a.store.Run)
			s.apart = append(s.apart, a)
		}
		a.keys = append(a.keys, strings.Join(o.Servers, ";"))
	}
	return nil
}

// overrides are the stores of single resources as the registry wants them.
func (s *Server) overrides() map[string]registry.Override {
	all := make(map[string]registry.Override)
	for _, a := range s.apart {
		for _, key := range a.keys {
			all[key] = registry.Override{Store: a.store, Tail: a.tail}
		}
	}
	return all
}

// awaitApart blocks until they are open and says so.
func (s *Server) awaitApart(ctx context.Context) error {
	for _, a := range s.apart {
		revision, err := a.store.Revision(ctx)
		if err != nil {
			return fmt.Errorf("server: etcd at %s: %w", a.servers, err)
		}
		s.progress.printf("store: etcd at %s, revision %d", a.servers, revision)
	}
	return nil
}
