package streams

import "github.com/larder-io/larder/httpapi/socket"

// queue holds the watches that wait to be run, in the order in which they were woken. Watches of one
// connection wait together and run one after the other, so that what they send leaves in one write.
type queue struct {
	waiting int
	entries []entry // from head on; those before it are zero
	head    int
	conns   map[socket.Group]*connQueue
	spare   *connQueue // one that is not in use, or nil
}

// entry is one place in the queue: of a watch, or of a connQueue.
type entry struct {
	ws   *watchStream
	conn *connQueue
}

// connQueue is the watches of one connection that wait.
type connQueue struct {
	group   socket.Group
	waiting []*watchStream // from head on; those before it are nil
	head    int
	served  int // watches that ran one after the other
}

// mostInSuccession is how many watches of one connection run before others do.
const mostInSuccession = 64

// push adds ws.
func (q *queue) push(ws *watchStream) {
	q.waiting++
	if ws.group == nil {
		q.enter(entry{ws: ws})
		return
	}
	pt := q.conns[ws.group]
	if pt == nil {
		if pt, q.spare = q.spare, nil; pt == nil {
			pt = &connQueue{}
		}
		pt.group = ws.group
		q.conns[ws.group] = pt
		q.enter(entry{conn: pt})
	}
	pt.waiting, pt.head = moved(pt.waiting, pt.head)
	pt.waiting = append(pt.waiting, ws)
}

// enter adds an entry.
func (q *queue) enter(e entry) {
	q.entries, q.head = moved(q.entries, q.head)
	q.entries = append(q.entries, e)
}

// moved returns list, which is used from head on, and its head. If the list is full and at least half
// of it is unused, moved moves the rest to the front: otherwise a list that is never empty would grow.
func moved[T any](list []T, head int) ([]T, int) {
	if len(list) < cap(list) || head < len(list)-head {
		return list, head
	}
	used := copy(list, list[head:])
	clear(list[used:])
	return list[:used], 0
}

// pop takes the next watch. more says that the one after it shares its connection. If
// kept is not nil and the next watch is not of that group, pop takes none.
func (q *queue) pop(kept socket.Group) (ws *watchStream, more bool) {
	if q.waiting == 0 {
		return nil, false
	}
	e := q.entries[q.head]
	if kept != nil && (e.conn == nil || e.conn.group != kept) {
		return nil, false
	}
	q.waiting--
	if e.conn == nil {
		q.shift()
		return e.ws, false
	}
	pt := e.conn
	ws = pt.waiting[pt.head]
	pt.waiting[pt.head] = nil
	pt.head++
	pt.served++
	switch {
	case pt.head == len(pt.waiting):
		q.shift()
		delete(q.conns, pt.group)
		*pt = connQueue{waiting: pt.waiting[:0]}
		q.spare = pt
	case pt.served == mostInSuccession:
		pt.served = 0
		q.shift()
		q.enter(e)
	default:
		more = true
	}
	return ws, more
}

// shift takes the first entry away.
func (q *queue) shift() {
	q.entries[q.head] = entry{}
	if q.head++; q.head == len(q.entries) {
		q.entries, q.head = q.entries[:0], 0
	}
}
