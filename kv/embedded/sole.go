package embedded

import (
	"context"
	"strings"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"google.golang.org/grpc"
)

// soleMember reports whether a server is the only member of its cluster, so that no other member can
// acknowledge writes.
//
// etcd holds the lock of its list of members while it writes to the database, and check must not wait for a stalled
// disk. So the list is read once, and later only if a client has requested a change of it.
type soleMember struct {
	server *etcdserver.EtcdServer // set before check
	// changes says that the list had several members when it was read, or that a client has requested a change since.
	changes atomic.Bool
}

// begin reads the list of members of a server that has applied its whole log.
func (m *soleMember) begin(server *etcdserver.EtcdServer) {
	m.server = server
	if !m.isVoter() {
		m.changes.Store(true)
	}
}

// isVoter reports whether the list has one member that votes. It may wait for the disk.
func (m *soleMember) isVoter() bool {
	voters, ok := m.server.Cluster().(interface{ VotingMemberIDs() []types.ID })
	return ok && len(voters.VotingMemberIDs()) == 1
}

// check reports whether the server is the only member.
func (m *soleMember) check() bool {
	return (!m.changes.Load() || m.isVoter()) && m.server.Leader() == m.server.MemberID()
}

// intercept records requests that change the list of members, before the server processes them.
func (m *soleMember) intercept(ctx context.Context, in any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if info.FullMethod != etcdserverpb.Cluster_MemberList_FullMethodName && strings.HasPrefix(info.FullMethod, "/etcdserverpb.Cluster/") {
		m.changes.Store(true)
	}
	return handler(ctx, in)
}
