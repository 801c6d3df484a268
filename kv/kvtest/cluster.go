package kvtest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/larder-io/larder/internal/proctest"
)

// Member is a process that serves as a member of an etcd cluster.
type Member struct {
	*proctest.Process
	Config MemberConfig
}

// StartCluster starts a cluster whose members are processes of the test binary and
// waits until they serve. variable is the one that makes TestMain call [RunMember].
// adjust, if not nil, may change the members' configurations.
func StartCluster(t testing.TB, variable string, size int, adjust func([]MemberConfig)) []*Member {
	t.Helper()
	address := func() string { return "http://127.0.0.1:" + strconv.Itoa(proctest.Port(t)) }
	configs := make([]MemberConfig, size)
	for i := range configs {
		name := "m" + strconv.Itoa(i)
		configs[i] = MemberConfig{
			Name: name, Dir: filepath.Join(t.TempDir(), name), Peer: address(), Client: address(), HeartbeatMs: 50, VoteMs: 500,
		}
	}
	if adjust != nil {
		adjust(configs)
	}
	var peers []string
	for _, config := range configs {
		peers = append(peers, config.Name+"="+config.Peer)
	}
	members := make([]*Member, size)
	for i, config := range configs {
		config.Cluster = strings.Join(peers, ",")
		members[i] = &Member{Process: proctest.New(t, "member "+config.Name, proctest.Role(t, variable, config)), Config: config}
		if err := members[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range members {
		m.AwaitReady(t)
	}
	return members
}

// AwaitReady waits until the member serves.
func (m *Member) AwaitReady(t testing.TB) {
	t.Helper()
	m.Await(t, memberReady)
}

// URLs returns the members' client URLs.
func URLs(members []*Member) []string {
	urls := make([]string, len(members))
	for i, m := range members {
		urls[i] = m.Config.Client
	}
	return urls
}

// Leader returns the client URL, one of urls, of the member that leads. Members that
// do not answer are passed over.
func Leader(ctx context.Context, urls []string) (string, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: urls, Logger: zap.NewNop()})
	if err != nil {
		return "", fmt.Errorf("kvtest: leader: %w", err)
	}
	defer client.Close()
	for _, member := range urls {
		once, cancel := context.WithTimeout(ctx, time.Second)
		status, err := client.Status(once, member)
		cancel()
		if err == nil && status.Leader == status.Header.MemberId {
			return member, nil
		}
	}
	return "", errors.New("kvtest: no member leads")
}

// Compact gives up all history of a cluster before a revision.
func Compact(ctx context.Context, urls []string, revision int64) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: urls, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("kvtest: compact: %w", err)
	}
	defer client.Close()
	if _, err := client.Compact(ctx, revision); err != nil {
		return fmt.Errorf("kvtest: compact: %w", err)
	}
	return nil
}
