package streams

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/larder-io/larder/httpapi/socket"
)

type connection struct{ flushed int }

func (c *connection) Flush(*socket.Waiter) { c.flushed++ }

// TestQueue checks that every waiting watch is returned once, and that watches of a connection keep their order. While
// others wait, a connection has at most maxInSuccession turns in a row.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := queue{conns: make(map[socket.Group]*connQueue)}
		groups := []socket.Group{nil, &connection{}, &connection{}, &connection{}}
		waiting := make(map[socket.Group][]*watchStream)
		left := 0
		var last socket.Group // of the watch that was taken last
		row := 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				g := rapid.SampledFrom(groups).Draw(t, "group")
				for range rapid.IntRange(1, 2*maxInSuccession).Draw(t, "watches") {
					ws := &watchStream{response: response{group: g}}
					q.push(ws)
					waiting[g] = append(waiting[g], ws)
					left++
				}
			},
			"pop": func(t *rapid.T) {
				for range rapid.IntRange(1, maxInSuccession).Draw(t, "watches") {
					var kept socket.Group
					if rapid.Bool().Draw(t, "kept") {
						kept = last
					}
					ws, more := q.pop(kept)
					if ws == nil {
						if kept == nil && left > 0 {
							t.Fatalf("none of %d is taken", left)
						}
						return
					}
					if kept != nil && ws.group != kept {
						t.Fatal("a watch of another connection is taken")
					}
					if !slices.Contains(waiting[ws.group], ws) || ws.group != nil && waiting[ws.group][0] != ws {
						t.Fatal("out of order, or taken before")
					}
					if ws.group == nil {
						waiting[nil] = slices.DeleteFunc(waiting[nil], func(other *watchStream) bool { return other == ws })
					} else {
						waiting[ws.group] = waiting[ws.group][1:]
					}
					left--
					if ws.group == nil || ws.group != last {
						row = 0
					}
					others := left - len(waiting[ws.group])
					if row++; others == 0 {
						row = 0
					}
					if row > maxInSuccession {
						t.Fatalf("%d turns in a row while %d others wait", row, others)
					}
					if last = ws.group; more && (last == nil || len(waiting[last]) == 0) {
						t.Fatal("take reports more watches of a connection that has none")
					}
				}
			},
			"": func(t *rapid.T) {
				if q.waiting != left {
					t.Fatalf("%d watches wait, the queue counts %d", left, q.waiting)
				}
			},
		})
	})
}

// TestQueueStaysSmall checks that the memory of a queue that is never empty depends only on the number of waiting
// watches.
func TestQueueStaysSmall(t *testing.T) {
	for name, groups := range map[string][]socket.Group{
		"connections of their own": {nil},
		"one connection":           {&connection{}},
		"several":                  {&connection{}, nil, &connection{}},
	} {
		t.Run(name, func(t *testing.T) {
			const waiting, turns = 100, 50_000
			q := queue{conns: make(map[socket.Group]*connQueue)}
			for i := range waiting {
				q.push(&watchStream{response: response{group: groups[i%len(groups)]}})
			}
			for range turns {
				ws, _ := q.pop(nil)
				q.push(ws)
			}
			room := 0
			for e := q.order.Front(); e != nil; e = e.Next() {
				room += 1 + cap(e.Value.(*connQueue).waiting)
			}
			if room > 16*waiting {
				t.Errorf("%d waiting watches take %d places after %d turns", waiting, room, turns)
			}
		})
	}
}

// TestPumpFlushes checks that a scheduler goroutine flushes a connection before it turns to another one or has
// nothing to do.
func TestPumpFlushes(t *testing.T) {
	p := &scheduler{}
	p.init()
	p.maxActive = 1
	p.active, p.closed = 1, true // this goroutine, which ends when there is nothing
	a, b := &connection{}, &connection{}
	for _, g := range []socket.Group{a, b, a, b, nil} {
		p.push(&watchStream{response: response{group: g}})
	}
	var took []socket.Group
	for kept := socket.Group(nil); ; {
		ws, more, _ := p.next(kept)
		switch {
		case ws != nil:
			took = append(took, ws.group)
			if kept != nil && ws.group != kept {
				t.Error("another connection is served while bytes are kept")
			}
			if more {
				kept = ws.group
			}
			continue
		case kept != nil:
			kept = nil
			continue
		}
		break
	}
	if !slices.Equal(took, []socket.Group{a, a, b, b, nil}) {
		t.Errorf("served %v", took)
	}
}
