package kvtest

import (
	"context"
	"fmt"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/larder-io/larder/kv"
)

// Snapshot saves the data of a cluster of one member to a file, as a backup does.
func (c *Client) Snapshot(ctx context.Context, path string) error {
	if _, err := snapshot.NewV3(zap.NewNop()).Save(ctx, clientv3.Config{Endpoints: c.urls, Logger: zap.NewNop()}, path); err != nil {
		return fmt.Errorf("kvtest: snapshot: %w", err)
	}
	return nil
}

// Restore replaces the data of a cluster's only member, which must not run, by the data of a
// snapshot, as etcdutl does without the flag that raises the revision. Cluster and member
// keep their ids.
func (m *Member) Restore(path string) error {
	if err := os.RemoveAll(m.Config.Dir); err != nil {
		return fmt.Errorf("kvtest: restore: %w", err)
	}
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath:        path,
		Name:                m.Config.Name,
		OutputDataDir:       m.Config.Dir,
		PeerURLs:            []string{m.Config.Peer},
		InitialCluster:      m.Config.Cluster,
		InitialClusterToken: "etcd-cluster", // the default
	})
	if err != nil {
		return fmt.Errorf("kvtest: restore: %w", err)
	}
	return nil
}

// Items returns the items under a prefix.
func (c *Client) Items(ctx context.Context, prefix string) ([]kv.Item, error) {
	answer, err := c.client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("kvtest: items: %w", err)
	}
	items := make([]kv.Item, 0, len(answer.Kvs))
	for _, item := range answer.Kvs {
		items = append(items, kv.Item{
			Key: string(item.Key), Value: item.Value, Revision: item.ModRevision, CreateRevision: item.CreateRevision, Lease: item.Lease,
		})
	}
	return items, nil
}
