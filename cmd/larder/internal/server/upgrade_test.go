package server

import (
	"strings"
	"testing"
)

// TestProcessesThatAreNotReplaced checks that a server whose state another process cannot take over starts no
// successor.
func TestProcessesThatAreNotReplaced(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"embedded etcd": func(c *Config) { c.Etcd.StorageConfig.Transport.ServerList = nil },
		"checkpoints":   func(c *Config) { c.Checkpoints = true },
		"controllers":   func(c *Config) { c.TestControllers = true },
	} {
		config := Default()
		config.Etcd.StorageConfig.Transport.ServerList = []string{"http://127.0.0.1:1"}
		change(&config)
		if _, err := (&Server{config: config}).startSuccessor(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
