package cache

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// benchBody is the size of a realistic pod in protobuf.
const benchBody = 4800

// podLike makes an object with the labels and fields of a Deployment's pod.
func podLike(s *ResourceSchema, i int, revision int64, body int) *Object {
	workload := i / 20 % 100
	return NewObject(ObjectConfig{
		Key:      fmt.Sprintf("namespace-%d/workload-%d-7d4b9c6f5-%05d", i/200, workload, i),
		Revision: revision,
		Body:     make([]byte, body),
		Labels: map[string]string{
			"app.kubernetes.io/name":     fmt.Sprintf("workload-%d", workload),
			"app.kubernetes.io/instance": fmt.Sprintf("workload-%d-%d", workload, i/200),
			"pod-template-hash":          "7d4b9c6f5",
			"tier":                       "backend",
		},
		Fields: fields.Set{
			"metadata.name":            fmt.Sprintf("workload-%d-7d4b9c6f5-%05d", workload, i),
			"metadata.namespace":       fmt.Sprintf("namespace-%d", i/200),
			"spec.nodeName":            fmt.Sprintf("node-%04d", i%500),
			"spec.restartPolicy":       "Always",
			"spec.schedulerName":       "default-scheduler",
			"spec.serviceAccountName":  "default",
			"spec.hostNetwork":         "false",
			"status.phase":             "Running",
			"status.podIP":             fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255),
			"status.nominatedNodeName": "",
		},
	}, s)
}

func benchCache(tb testing.TB, objects, body int, indexes ...Index) *Cache {
	tb.Helper()
	schema := NewResourceSchema("pods", nil, indexes...)
	c, err := New(Config{Schema: schema})
	if err != nil {
		tb.Fatal(err)
	}
	all := make([]*Object, objects)
	for i := range all {
		all[i] = podLike(schema, i, int64(i+1), body)
	}
	c.Reset(all, int64(objects))
	return c
}

func eachSize(b *testing.B, run func(b *testing.B, c *Cache, n int)) {
	for _, n := range []int{10_000, 50_000} {
		b.Run(fmt.Sprintf("objects=%d", n), func(b *testing.B) {
			c := benchCache(b, n, 64, Index{Field: "spec.nodeName"})
			b.ReportAllocs()
			b.ResetTimer()
			run(b, c, n)
		})
	}
}

func benchList(b *testing.B, c *Cache, q Query, want int) {
	dst := make([]*Object, 0, max(want, 1))
	for b.Loop() {
		page, err := c.Snapshot().List(q, dst[:0])
		if err != nil || len(page.Objects) != want {
			b.Fatal(len(page.Objects), err)
		}
	}
}

func BenchmarkListAll(b *testing.B) {
	eachSize(b, func(b *testing.B, c *Cache, n int) { benchList(b, c, Query{}, n) })
}

func BenchmarkListNamespace(b *testing.B) {
	eachSize(b, func(b *testing.B, c *Cache, n int) { benchList(b, c, Query{Prefix: "namespace-7/"}, 200) })
}

func BenchmarkListNode(b *testing.B) {
	eachSize(b, func(b *testing.B, c *Cache, n int) {
		benchList(b, c, Query{Field: fields.OneTermEqualSelector("spec.nodeName", "node-0123")}, n/500)
	})
}

func BenchmarkListLabelScan(b *testing.B) {
	eachSize(b, func(b *testing.B, c *Cache, n int) {
		selector, err := labels.Parse("app.kubernetes.io/name=workload-7,tier in (backend,frontend)")
		if err != nil {
			b.Fatal(err)
		}
		benchList(b, c, Query{Label: selector}, n/100)
	})
}

// BenchmarkListLabel lists the pods of a workload, one in a hundred.
func BenchmarkListLabel(b *testing.B) {
	for name, indexes := range map[string][]Index{"scan": nil, "index": {{Label: "app.kubernetes.io/name"}}} {
		b.Run(name, func(b *testing.B) {
			c := benchCache(b, 10_000, 64, indexes...)
			c.learner.config.maxIndexes = -1
			selector, err := labels.Parse("app.kubernetes.io/name=workload-7")
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			benchList(b, c, Query{Label: selector}, 100)
		})
	}
}

// BenchmarkLearn builds an index of a label.
func BenchmarkLearn(b *testing.B) {
	eachSize(b, func(b *testing.B, c *Cache, n int) {
		for b.Loop() {
			if _, ok := c.current.Load().buildIndex("app.kubernetes.io/name"); !ok {
				b.Fatal("not selective")
			}
		}
	})
}

func BenchmarkListFieldScan(b *testing.B) {
	eachSize(b, func(b *testing.B, c *Cache, n int) {
		benchList(b, c, Query{Field: fields.ParseSelectorOrDie("status.phase!=Running")}, 0)
	})
}

func BenchmarkListPage(b *testing.B) {
	eachSize(b, func(b *testing.B, c *Cache, n int) {
		benchList(b, c, Query{From: "namespace-3/", Limit: 500}, 500)
	})
}

func BenchmarkGet(b *testing.B) {
	eachSize(b, func(b *testing.B, c *Cache, n int) {
		keys := make([]string, 0, n)
		page, _ := c.Snapshot().List(Query{}, nil)
		for _, o := range page.Objects {
			keys = append(keys, o.Key())
		}
		i := 0
		for b.Loop() {
			i = (i + 7919) % n
			if c.Snapshot().Get(keys[i]) == nil {
				b.Fatal(keys[i])
			}
		}
	})
}

func BenchmarkSnapshot(b *testing.B) {
	eachSize(b, func(b *testing.B, c *Cache, n int) {
		for b.Loop() {
			if c.Snapshot().Len() != n {
				b.Fatal("lost objects")
			}
		}
	})
}

func BenchmarkApply(b *testing.B) {
	eachSize(b, func(b *testing.B, c *Cache, n int) {
		revision := int64(n)
		now := time.Unix(0, 0)
		fresh := make([]*Object, n)
		for i := range fresh {
			fresh[i] = podLike(c.schema, i, revision+1, 64)
		}
		b.ResetTimer()
		i := 0
		for b.Loop() {
			i = (i + 7919) % n
			revision++
			now = now.Add(time.Millisecond)
			c.Apply(Batch{Revision: revision, Time: now, Changes: []Change{{fresh[i].Key(), fresh[i]}}})
		}
	})
}

func BenchmarkReset(b *testing.B) {
	eachSize(b, func(b *testing.B, c *Cache, n int) {
		page, _ := c.Snapshot().List(Query{}, nil)
		for b.Loop() {
			c.Reset(page.Objects, int64(n))
		}
	})
}

// BenchmarkEncoding reads an encoding that is already kept, as a LIST does for every object.
func BenchmarkEncoding(b *testing.B) {
	o := newTestObject(NewResourceSchema("things", nil), "a")
	encode := encodeTest(2)
	for id := EncodingID(1); id < 4; id++ {
		if _, err := o.Encoding(id, encode); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := o.Encoding(1, encode); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLogRead(b *testing.B) {
	c := benchCache(b, 100, 64)
	start := c.Snapshot().Position()
	for i := range 1000 {
		o := podLike(c.schema, i%100, int64(i)+101, 64)
		c.Apply(Batch{Revision: o.Revision(), Changes: []Change{{o.Key(), o}}})
	}
	dst := make([]*Event, 0, 1000)
	b.ReportAllocs()
	for b.Loop() {
		events, _, err := c.Log().Read(start, dst)
		if err != nil || len(events) != 1000 {
			b.Fatal(len(events), err)
		}
	}
}

// BenchmarkAt reconstructs a past state at the maximum distance from a checkpoint.
func BenchmarkAt(b *testing.B) {
	eachSize(b, func(b *testing.B, c *Cache, n int) {
		revision := int64(n)
		for i := range 2000 {
			o := podLike(c.schema, i*7919%n, revision+int64(i)+1, 64)
			c.Apply(Batch{Revision: o.Revision(), Time: time.Unix(0, 0), Changes: []Change{{o.Key(), o}}})
		}
		b.ResetTimer()
		for b.Loop() {
			for i := range c.checkpoints.recent {
				c.checkpoints.recent[i].Store(nil)
			}
			if _, err := c.At(revision + 520); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkNewObject(b *testing.B) {
	schema := NewResourceSchema("pods", nil, Index{Field: "spec.nodeName"})
	o := podLike(schema, 1, 1, 0)
	config := ObjectConfig{Key: o.Key(), Revision: 1, Body: make([]byte, 64), Labels: map[string]string{}, Fields: fields.Set{}}
	for rest := o.labels.Value(); rest != ""; {
		var k, v string
		k, rest = cutText(rest)
		v, rest = cutText(rest)
		config.Labels[k] = v
	}
	for _, name := range *schema.fields.Load() {
		config.Fields[name] = o.Fields().Get(name)
	}
	b.ReportAllocs()
	for b.Loop() {
		NewObject(config, schema)
	}
}

func BenchmarkWait(b *testing.B) {
	c := benchCache(b, 1, 1)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Wait(context.Background(), 1); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOverhead reports the memory of an object without its body.
func BenchmarkOverhead(b *testing.B) {
	for b.Loop() {
		const n = 50_000
		before := heap()
		c := benchCache(b, n, benchBody, Index{Field: "spec.nodeName"})
		after := heap()
		var bodies uint64
		page, _ := c.Snapshot().List(Query{}, nil)
		for _, o := range page.Objects {
			bodies += sizeClass(cap(o.Body()))
		}
		page.Objects = nil
		b.ReportMetric((float64(after.HeapAlloc-before.HeapAlloc)-float64(bodies))/n, "overhead-B/object")
		b.ReportMetric(float64(after.HeapObjects-before.HeapObjects)/n, "allocations/object")
		runtime.KeepAlive(c)
	}
}

// BenchmarkEventOverhead reports the memory of an event without the object that it replaced, including checkpoints.
func BenchmarkEventOverhead(b *testing.B) {
	for b.Loop() {
		const n = 50_000
		c := benchCache(b, n, 64, Index{Field: "spec.nodeName"})
		before := heap()
		for i := range n {
			o := podLike(c.schema, i*7919%n, int64(n+i+1), 64)
			c.Apply(Batch{Revision: o.Revision(), Time: time.Unix(0, 0), Changes: []Change{{o.Key(), o}}})
		}
		after := heap()
		object := float64(before.HeapAlloc) / n // overestimated
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n-object, "overhead-B/event")
		runtime.KeepAlive(c)
	}
}

func heap() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}

// sizeClass returns the size that the allocator uses for a slice of n bytes.
func sizeClass(n int) uint64 { return uint64(cap(append([]byte(nil), make([]byte, n)...))) }
