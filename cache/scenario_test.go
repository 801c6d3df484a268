package cache

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// TestScenariosMatchTheirFiles runs the scenarios in testdata. Record new results with -rewrite, and commit only changes
// that you can explain.
//
// An object is written "key@revision name=value...": node is spec.nodeName, all
// other names are labels, "corrupt" makes it corrupt, "size=n" is the length of its
// body. A line that starts with "-" deletes.
func TestScenariosMatchTheirFiles(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		s := &scenario{t: t}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t, s.out = t, strings.Builder{}
			s.run(d)
			if s.out.Len() == 0 {
				return "ok\n"
			}
			return s.out.String()
		})
	})
}

type scenario struct {
	t      *testing.T
	out    strings.Builder
	cache  *Cache
	budget *Budget
	source fakeSource
	saved  map[string]Snapshot
	places map[string]Position
}

func (s *scenario) printf(format string, args ...any) { fmt.Fprintf(&s.out, format, args...) }

func (s *scenario) run(d *datadriven.TestData) {
	switch d.Cmd {
	case "new":
		s.open(d)
	case "reset":
		s.cache.Reset(s.objects(d), number(s.t, d, "revision"))
	case "apply":
		s.apply(d)
	case "progress":
		s.source.fresh = number(s.t, d, "revision")
	case "discard":
		s.cache.discardOld(moment(s.t, d))
	case "list":
		s.list(d)
	case "get":
		s.get(d)
	case "save":
		snapshot, err := s.snapshot(d)
		if err != nil {
			s.printf("%v\n", err)
			return
		}
		s.saved[text(d, "as")], s.places[text(d, "as")] = snapshot, snapshot.Position()
	case "after":
		at, err := s.cache.Log().After(number(s.t, d, "revision"))
		s.printErr(err)
		s.places[text(d, "as")] = at
	case "read":
		s.read(d)
	case "encode":
		s.encode(d)
	case "status":
		s.status()
	default:
		d.Fatalf(s.t, "unknown command %q", d.Cmd)
	}
}

func (s *scenario) printErr(err error) {
	if err != nil {
		s.printf("%v\n", err)
	}
}

func (s *scenario) open(d *datadriven.TestData) {
	var indexes []Index
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "field":
			indexes = append(indexes, Index{Field: arg.Vals[0]})
		case "label":
			indexes = append(indexes, Index{Label: arg.Vals[0]})
		}
	}
	s.budget = NewBudget(number(s.t, d, "budget"))
	s.source, s.saved, s.places = fakeSource{}, map[string]Snapshot{}, map[string]Position{}
	c, err := New(Config{
		Schema: NewResourceSchema("things", s.budget, indexes...),
		Source: &s.source,
		Log: LogConfig{
			MinEvents: int(number(s.t, d, "min-events")),
			MaxEvents: int(number(s.t, d, "max-events")),
			MaxBytes:  number(s.t, d, "max-bytes"),
		},
	})
	s.printErr(err)
	s.cache = c
}

func (s *scenario) objects(d *datadriven.TestData) (objects []*Object) {
	for _, line := range lines(d.Input) {
		objects = append(objects, parseObject(s.t, s.cache.schema, line, 0))
	}
	return objects
}

func (s *scenario) apply(d *datadriven.TestData) {
	revision := number(s.t, d, "revision")
	batch := Batch{Revision: revision, Time: moment(s.t, d)}
	for _, line := range lines(d.Input) {
		if key, deleted := strings.CutPrefix(line, "-"); deleted {
			batch.Changes = append(batch.Changes, Change{Key: key})
			continue
		}
		o := parseObject(s.t, s.cache.schema, line, revision)
		batch.Changes = append(batch.Changes, Change{Key: o.Key(), Object: o})
	}
	s.cache.Apply(batch)
}

// snapshot returns the current state, the state at=REVISION, or the one that was saved, in=NAME.
func (s *scenario) snapshot(d *datadriven.TestData) (Snapshot, error) {
	if d.HasArg("in") {
		return s.saved[text(d, "in")], nil
	}
	if d.HasArg("at") {
		return s.cache.At(number(s.t, d, "at"))
	}
	return s.cache.Snapshot(), nil
}

func (s *scenario) list(d *datadriven.TestData) {
	snapshot, err := s.snapshot(d)
	if err != nil {
		s.printf("%v\n", err)
		return
	}
	q := Query{Prefix: text(d, "prefix"), From: text(d, "from"), Limit: int(number(s.t, d, "limit")), OmitRemaining: d.HasArg("uncounted")}
	if d.HasArg("label") {
		if q.Label, err = labels.Parse(text(d, "label")); err != nil {
			d.Fatalf(s.t, "%v", err)
		}
	}
	if d.HasArg("field") {
		q.Field = fields.ParseSelectorOrDie(text(d, "field"))
	}
	page, err := snapshot.List(q, nil)
	if err != nil {
		s.printf("%v\n", err)
		return
	}
	s.printf("revision %d, scanned %d", snapshot.Revision(), page.Scanned)
	if page.Index != "" {
		s.printf(" by %s", page.Index)
	}
	s.printf("\n")
	for _, o := range page.Objects {
		s.printf("  %s\n", describe(o))
	}
	if page.Next != "" {
		s.printf("next %q, %d remaining\n", page.Next, page.Remaining)
	}
}

func (s *scenario) get(d *datadriven.TestData) {
	snapshot, err := s.snapshot(d)
	if err != nil {
		s.printf("%v\n", err)
		return
	}
	s.printf("%s\n", describe(snapshot.Get(text(d, "key"))))
}

func (s *scenario) read(d *datadriven.TestData) {
	place := text(d, "from")
	var dst []*Event
	if limit := number(s.t, d, "room"); limit > 0 {
		dst = make([]*Event, 0, limit)
	}
	events, next, err := s.cache.Log().Read(s.places[place], dst)
	s.places[place] = next
	var tooOld ErrTooOld
	if errors.As(err, &tooOld) {
		s.printf("too old, oldest is %d\n", tooOld.Oldest)
		return
	}
	s.printErr(err)
	for _, e := range events {
		s.printf("%d: %s <- %s\n", e.Revision, describe(e.Object), describe(e.Prev))
	}
	if len(events) == 0 && err == nil {
		s.printf("nothing new\n")
	}
}

func (s *scenario) encode(d *datadriven.TestData) {
	snapshot, err := s.snapshot(d)
	if err != nil {
		d.Fatalf(s.t, "%v", err)
	}
	id := EncodingID(number(s.t, d, "id"))
	made := "kept"
	_, err = snapshot.Get(text(d, "key")).Encoding(id, func(o *Object) ([]byte, error) {
		made = "made"
		if d.HasArg("fail") {
			return nil, errors.New("encoder failed")
		}
		return make([]byte, number(s.t, d, "size")), nil
	})
	s.printErr(err)
	s.printf("%s; %d bytes of encodings, budget used %d of %d\n", made, s.cache.schema.EncodingBytes(), s.budget.Used(), s.budget.Limit())
}

func (s *scenario) status() {
	snapshot, log := s.cache.Snapshot(), s.cache.Log()
	s.printf("ready %t, epoch %d, revision %d, %d objects, %d bytes\n", s.cache.Ready(), snapshot.Epoch(), snapshot.Revision(), snapshot.Len(), snapshot.Bytes())
	s.printf("log from %d, %d events, %d bytes\n", log.Oldest(), log.Len(), log.Bytes())
}

func describe(o *Object) string {
	if o == nil {
		return "none"
	}
	if o.Err() != nil {
		return fmt.Sprintf("%s@%d (%v)", o.Key(), o.Revision(), o.Err())
	}
	return fmt.Sprintf("%s@%d", o.Key(), o.Revision())
}

func parseObject(t *testing.T, schema *ResourceSchema, line string, revision int64) *Object {
	words := strings.Fields(line)
	key, at, stated := strings.Cut(words[0], "@")
	if stated {
		var err error
		if revision, err = strconv.ParseInt(at, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	config := ObjectConfig{Key: key, Revision: revision, Labels: labels.Set{}, Fields: fields.Set{"spec.nodeName": ""}, Body: []byte(line)}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "corrupt":
			config.Err = errCorrupt
		case "node":
			config.Fields["spec.nodeName"] = value
		case "size":
			size, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			config.Body = make([]byte, size)
		default:
			config.Labels[name] = value
		}
	}
	return NewObject(config, schema)
}

func lines(input string) (all []string) {
	for line := range strings.Lines(input) {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	return all
}

func text(d *datadriven.TestData, name string) string {
	for _, arg := range d.CmdArgs {
		if arg.Key == name {
			return strings.ReplaceAll(strings.Join(arg.Vals, ","), `\0`, "\x00")
		}
	}
	return ""
}

func number(t *testing.T, d *datadriven.TestData, name string) int64 {
	if !d.HasArg(name) {
		return 0
	}
	n, err := strconv.ParseInt(text(d, name), 10, 64)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return n
}

// moment returns the argument time, in seconds since the scenario began.
func moment(t *testing.T, d *datadriven.TestData) time.Time {
	return time.Unix(1_000_000+number(t, d, "time"), 0)
}
