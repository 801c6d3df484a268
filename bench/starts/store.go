package starts

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
)

// pair is a key of etcd with its value.
type pair struct{ key, value []byte }

// value returns the value of a key.
func value(ctx context.Context, etcd *clientv3.Client, key string) ([]byte, error) {
	answer, err := etcd.Get(ctx, key)
	if err == nil && len(answer.Kvs) != 1 {
		err = fmt.Errorf("etcd has no %s", key)
	}
	if err != nil {
		return nil, fmt.Errorf("starts: %w", err)
	}
	return answer.Kvs[0].Value, nil
}

// fill writes n pairs, many in each transaction, and checks their number below prefix.
func fill(ctx context.Context, etcd *clientv3.Client, prefix string, n int, item func(i int) (pair, error)) error {
	const (
		each    = 64 // in a transaction: etcd's limits are 128, and 1.5 MB
		clients = 4
	)
	writing, within := errgroup.WithContext(ctx)
	writing.SetLimit(clients)
	for first := 0; first < n; first += each {
		writing.Go(func() error {
			var puts []clientv3.Op
			for i := first; i < min(first+each, n); i++ {
				p, err := item(i)
				if err != nil {
					return err
				}
				puts = append(puts, clientv3.OpPut(string(p.key), string(p.value)))
			}
			_, err := etcd.Txn(within).Then(puts...).Commit()
			return err
		})
	}
	if err := writing.Wait(); err != nil {
		return fmt.Errorf("starts: etcd: %w", err)
	}
	answer, err := etcd.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err == nil && answer.Count != int64(n) {
		err = fmt.Errorf("%d objects below %s, want %d", answer.Count, prefix, n)
	}
	if err != nil {
		return fmt.Errorf("starts: etcd: %w", err)
	}
	return nil
}

// compact removes the history, so that servers do not replay it.
func compact(ctx context.Context, etcd *clientv3.Client) error {
	now, err := etcd.Get(ctx, "none")
	if err == nil {
		_, err = etcd.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err == nil {
		_, err = etcd.Defragment(ctx, etcd.Endpoints()[0])
	}
	if err != nil {
		return fmt.Errorf("starts: etcd: %w", err)
	}
	return nil
}
