package kv_test

import (
	"context"
	"testing"
	"time"

	"github.com/larder-io/larder/kv"
)

func TestSmoke(t *testing.T) {
	start := time.Now()
	e, err := kv.NewEmbedded(kv.EmbeddedConfig{Dir: t.TempDir(), Prefix: "/registry"})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	select {
	case <-e.Ready():
	case err := <-done:
		t.Fatal(err)
	}
	t.Log("ready", time.Since(start))
	w := e.Watch(ctx, "/registry/", 1)
	r, err := e.Put(ctx, "/registry/a", []byte("x"), kv.PutOptions{TTL: 100 * time.Second})
	t.Log(r, err)
	t.Log(<-w)
	t.Log(e.RequestProgress(ctx))
	t.Log(<-w)
	t.Log(e.Revision(ctx))
	t.Log(e.Get(ctx, "/registry/a"))
	t.Log(e.Range(ctx, kv.RangeOptions{Prefix: "/registry/"}))
	t.Log(e.Delete(ctx, "/registry/a", r.Revision))
	t.Log(e.Size(ctx))
	start = time.Now()
	e.Close()
	t.Log("close", time.Since(start), <-done)
}
