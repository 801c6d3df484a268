package consistency

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/larder-io/larder/kv/kvtest"
)

// transact changes several objects in one etcd transaction, which clients of an API server cannot do.
func (c *client) transact() {
	var changes []kvtest.Change
	var writes []write
	number := c.transactions.Add(1)
	for _, at := range c.random.Perm(configMaps.names)[:2+c.random.IntN(3)] {
		key := fmt.Sprintf("o%02d", at)
		now := c.truth.latest(key)
		w := write{of: configMaps, key: key, transaction: number, note: "transaction"}
		change := kvtest.Change{Key: prefix + key, IfRevision: now.Revision}
		switch dice := c.random.IntN(10); {
		case now.Value != nil && dice < 2:
			w.deletes = now.Revision
		case now.Value != nil && dice < 7:
			w.payload = c.payload()
			change.Value = w.payload.replace(now.Value)
		default:
			w.payload = c.payload()
			change.Value = w.payload.stored(key)
		}
		writes, changes = append(writes, w), append(changes, change)
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	revision, committed, err := c.cluster.outsider.Transact(ctx, changes)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range writes {
		switch {
		case err != nil:
			w.note += fmt.Sprintf(": %v", err)
		case committed:
			w.outcome, w.revision = acknowledged, revision
		default:
			w.outcome = rejected
		}
		c.writes = append(c.writes, w)
	}
	if committed {
		raise(&c.known, revision)
	}
}

// stored returns the object as a server that stores JSON would have written it.
func (p payload) stored(name string) []byte {
	return fmt.Appendf(nil, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":%q,"namespace":"default","uid":"00000000-0000-0000-0000-%012d","creationTimestamp":%q,"labels":{"g":%q}},"data":{"p":"%v"}}`,
		name, p.id, time.Now().UTC().Format(time.RFC3339), p.group, p)
}

// replace returns a stored object with another payload, which has the same length. Larder stores protobuf, in which the
// label is a map entry.
func (p payload) replace(stored []byte) []byte {
	before, _ := readPayload(stored)
	stored = bytes.ReplaceAll(stored, []byte(before.String()), []byte(p.String()))
	for _, form := range []string{"\n\x01g\x12\x01%s", `"g":%q`} {
		stored = bytes.ReplaceAll(stored, fmt.Appendf(nil, form, before.group), fmt.Appendf(nil, form, p.group))
	}
	return stored
}
