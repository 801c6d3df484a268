package kv_test

import (
	"testing"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

func TestEmbedded(t *testing.T) {
	kvtest.Conformance(t, func(t *testing.T) kvtest.Subject {
		return subject(openEmbedded(t, kv.EmbeddedConfig{}))
	})
}

func TestExternal(t *testing.T) {
	members := startCluster(t, 1, nil)
	kvtest.Conformance(t, func(t *testing.T) kvtest.Subject {
		return subject(openExternal(t, kv.ExternalConfig{Endpoints: endpoints(members)}))
	})
}

func TestCluster(t *testing.T) {
	members := startCluster(t, 3, nil)
	kvtest.Conformance(t, func(t *testing.T) kvtest.Subject {
		return subject(openExternal(t, kv.ExternalConfig{Endpoints: endpoints(members)}))
	})
}
