package server

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/kv"
)

// override is a store that --etcd-servers-overrides names for one or more resources.
type override struct {
	keys      []string // the lists of its servers as the flag has them, which may differ in their order
	servers   []string
	resources []schema.GroupResource
	store     *kv.Etcd
	tail      *kv.Tail
}

// openOverrides starts the stores of --etcd-servers-overrides, one for each set of servers other than
// --etcd-servers; awaitOverrides waits for them.
func (s *Server) openOverrides(ctx context.Context) error {
	overrides, err := options.ParseEtcdServersOverrides(s.config.Etcd.EtcdServersOverrides)
	if err != nil {
		return err
	}
	bySet, set := make(map[string]*override), func(servers []string) string {
		return strings.Join(slices.Sorted(slices.Values(servers)), ";")
	}
	for _, o := range overrides {
		key := set(o.Servers)
		a := bySet[key]
		switch {
		case key == set(s.config.Etcd.StorageConfig.Transport.ServerList):
			continue // a second client would also compact the store
		case a == nil:
			a = &override{servers: o.Servers}
			if a.store, err = s.connect(o.Servers); err != nil {
				return err
			}
			a.tail = s.newTail(a.store)
			bySet[key] = a
			s.layers.Start(ctx, fmt.Sprintf("store of %s", o.GroupResource), a.store.Run)
			s.overrides = append(s.overrides, a)
		}
		a.keys, a.resources = append(a.keys, strings.Join(o.Servers, ";")), append(a.resources, o.GroupResource)
	}
	return nil
}

// registryOverrides returns the stores by the key by which the registry looks them up.
func (s *Server) registryOverrides() map[string]registry.Override {
	all := make(map[string]registry.Override)
	for _, a := range s.overrides {
		for _, key := range a.keys {
			all[key] = registry.Override{Store: s.fence.Store(a.store), Tail: a.tail}
		}
	}
	return all
}

// awaitOverrides blocks until the stores are open, and reports each.
func (s *Server) awaitOverrides(ctx context.Context) error {
	for _, a := range s.overrides {
		revision, err := a.store.Revision(ctx)
		if err != nil {
			return fmt.Errorf("server: etcd at %s: %w", a.servers, err)
		}
		s.progress.printf("store: etcd at %s, revision %d", a.servers, revision)
		if err := a.refuseUnmoved(ctx, s.store, s.config.Etcd.StorageConfig.Prefix); err != nil {
			return err
		}
	}
	return nil
}

// refuseUnmoved returns an error if custom resources, CRDs or APIServices belong in o but exist only in main, the
// store of --etcd-servers. kube-apiserver always keeps them in main. If they seemed to be deleted, the garbage
// collector would delete the objects that they own.
func (o *override) refuseUnmoved(ctx context.Context, main *kv.Etcd, root string) error {
	for _, gr := range o.resources {
		if gr.Group == "" {
			continue // these resources are never in the core group
		}
		var counts [2]int64
		for i, store := range []*kv.Etcd{main, o.store} {
			prefix := path.Join(root, gr.Group, gr.Resource) + "/" // built-in resources have other prefixes
			page, err := store.Range(ctx, kv.RangeOptions{Prefix: prefix, CountOnly: true})
			if err != nil {
				return fmt.Errorf("server: %w", err)
			}
			counts[i] = page.Count
		}
		if counts[0] > 0 && counts[1] == 0 {
			return fmt.Errorf("server: --etcd-servers-overrides: the etcd at %s has no %s, but that of --etcd-servers has %d: move them, or omit the override",
				o.servers, gr, counts[0])
		}
	}
	return nil
}
