package httpapi

import (
	"fmt"
	"net"
	"testing"

	"github.com/larder-io/larder/internal/registry/registrytest"
)

// BenchmarkNew is what installing all endpoints adds to the start of a server.
func BenchmarkNew(b *testing.B) {
	back := registrytest.New(b, nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	config, _ := testTLS(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := New(Config{Registry: back.Registry, Listener: listener, TLS: config, Version: testVersion()}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConverter is what the first write to a group costs on top.
func BenchmarkConverter(b *testing.B) {
	back := registrytest.New(b, nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := newModels().buildConverter(back.Registry.Groups()[0]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpenAPIV3 is the first request for the index, which names each document
// by its hash and so needs them all.
func BenchmarkOpenAPIV3(b *testing.B) {
	back := registrytest.New(b, nil)
	b.ReportAllocs()
	for b.Loop() {
		d := &describer{models: newModels(), groups: back.Registry.Groups(), version: testVersion()}
		for _, s := range d.services() {
			if _, err := d.v3(s); err != nil {
				b.Fatal(err)
			}
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
