package etcdmain

import (
	"slices"
	"testing"
)

// TestOnlyASingleMemberGetsShorterTicks checks arguments and variables. The members of a cluster must have the same ticks.
func TestOnlyASingleMemberGetsShorterTicks(t *testing.T) {
	for _, c := range []struct {
		args, environ []string
		faster        bool
	}{
		{[]string{"etcd"}, nil, true},
		{[]string{"etcd", "--data-dir", "d"}, []string{"ETCD_NAME=n"}, true},
		{[]string{"etcd", "--initial-cluster=a=http://a:1,b=http://b:1"}, nil, false},
		{[]string{"etcd", "-config-file", "f"}, nil, false},
		{[]string{"etcd"}, []string{"ETCD_INITIAL_CLUSTER=a=http://a:1"}, false},
		{[]string{"etcd", "--heartbeat-interval=50"}, nil, false},
		{[]string{"etcd", "gateway", "start"}, nil, false},
		{[]string{"etcd", "--version"}, nil, false},
	} {
		if got := shortenTicks(c.args, c.environ); slices.Contains(got, "--election-timeout=100") != c.faster {
			t.Errorf("%v %v: got arguments %v, want shorter ticks: %v", c.args, c.environ, got, c.faster)
		}
	}
}
