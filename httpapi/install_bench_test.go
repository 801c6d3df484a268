package httpapi

import (
	"fmt"
	"net"
	"testing"

	"github.com/larder-io/larder/internal/proctest/testcert"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// BenchmarkNew measures the installation of all endpoints at the start of a server.
func BenchmarkNew(b *testing.B) {
	back := registrytest.New(b, nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	config, _ := testcert.Loopback(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := New(Config{Registry: back.Registry, Listener: listener, TLS: config, Version: testVersion()}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCreate is a write through the whole server over a store in memory.
func BenchmarkCreate(b *testing.B) {
	s, _ := newLarder(b)
	s.must(b, post("/api/v1/namespaces", `{"metadata":{"name":"default"}}`))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.must(b, post(maps_, fmt.Sprintf(`{"metadata":{"name":"x%d"},"data":{"k":"v"}}`, i)))
	}
}
