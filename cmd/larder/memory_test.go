package main

import (
	"testing"
	"testing/fstest"
)

func TestLeastCgroupLimitCounts(t *testing.T) {
	const self = "proc/self/cgroup"
	for _, test := range []struct {
		name  string
		files map[string]string
		limit int64
		ok    bool
	}{
		{"no files", nil, 0, false},
		{"version 2", map[string]string{"sys/fs/cgroup/memory.max": "536870912\n"}, 512 << 20, true},
		{"version 2 unlimited", map[string]string{"sys/fs/cgroup/memory.max": "max\n"}, 0, false},
		{"version 1 unlimited", map[string]string{"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0, false},
		{"version 1", map[string]string{"sys/fs/cgroup/memory/memory.limit_in_bytes": "536870912\n"}, 512 << 20, true},
		{"rubbish", map[string]string{self: "rubbish\n::\n", "sys/fs/cgroup/memory.max": "lots\n"}, 0, false},
		{"zero", map[string]string{"sys/fs/cgroup/memory.max": "0\n"}, 0, false},
		{"a service of systemd", map[string]string{
			self: "0::/system.slice/larder.service\n",
			"sys/fs/cgroup/system.slice/larder.service/memory.max": "1073741824\n",
			"sys/fs/cgroup/system.slice/memory.max":                "max\n",
		}, 1 << 30, true},
		{"a slice around it", map[string]string{
			self: "0::/system.slice/larder.service\n",
			"sys/fs/cgroup/system.slice/larder.service/memory.max": "1073741824\n",
			"sys/fs/cgroup/system.slice/memory.max":                "536870912\n",
		}, 512 << 20, true},
		{"a service of systemd, version 1", map[string]string{
			self: "9:name=systemd:/x\n4:cpu,memory:/system.slice/larder.service\n0::/\n",
			"sys/fs/cgroup/memory/system.slice/larder.service/memory.limit_in_bytes": "1073741824\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":                             "9223372036854771712\n",
		}, 1 << 30, true},
		{"both versions", map[string]string{
			self: "4:memory:/a\n0::/b\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1073741824\n",
			"sys/fs/cgroup/unified/b/memory.max":           "536870912\n",
		}, 512 << 20, true},
		{"a container that sees its cgroup as the root", map[string]string{
			self:                       "0::/kubepods/burstable/pod1/abc\n",
			"sys/fs/cgroup/memory.max": "1073741824\n",
		}, 1 << 30, true},
		{"a cgroup outside the namespace", map[string]string{
			self:                       "0::/../../other\n",
			"sys/fs/cgroup/memory.max": "1073741824\n",
		}, 1 << 30, true},
		{"another controller", map[string]string{
			self: "3:cpu:/x\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1\n",
			"sys/fs/cgroup/x/memory.max":                   "1\n",
		}, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := make(fstest.MapFS)
			for name, text := range test.files {
				root[name] = &fstest.MapFile{Data: []byte(text)}
			}
			limit, ok := cgroupLimit(root)
			if limit != test.limit || ok != test.ok {
				t.Errorf("%d, %v, want %d, %v", limit, ok, test.limit, test.ok)
			}
		})
	}
}
