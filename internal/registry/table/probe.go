package table

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

const (
	// nearAge is how old a time is made to see whether a cell counts from it:
	// seconds show, and half a second is left for printing.
	nearAge     = 60*time.Second + 500*time.Millisecond
	nearText    = "60s"
	nearLatency = 400 * time.Millisecond

	year = 365 * 24 * time.Hour
	// farAge is how old at least all times are made to see which cells change. Ages
	// that differ by so much never have the same text.
	farAge = 10 * year
	// maxSpread is how far the times of an object may be apart: a Duration ends
	// after 292 years.
	maxSpread = 100 * year
	// apart is by how much times are moved that seconds do not tell from another.
	apart = 30 * time.Second
)

// errVolatile says that a row cannot be kept.
var errVolatile = errors.New("registry: row depends on time in a way that is not known")

// rowProbe prints one object with its times moved.
type rowProbe struct {
	printer *Printer
	list    runtime.Object // holds the object, whose times are moved
	times   []*time.Time
	was     []time.Time // what times were
	since   []time.Time // different ones of them, that of creation first

	plain, far rowPrint
	near       map[nearKey]rowPrint // made when needed
}

// nearKey names a print: the time in since that seconds show of, and where those go
// that seconds do not tell from it.
type nearKey struct {
	since int
	apart time.Duration
}

// rowPrint is one print: all times moved by seconds, between begun and ended.
type rowPrint struct {
	metav1.TableRow
	seconds      int64
	begun, ended time.Time
}

// newRowProbe returns a probe of obj. movable is false if it has times that cannot be
// moved.
func newRowProbe(printer *Printer, obj runtime.Object) (p *rowProbe, movable bool, err error) {
	p = &rowProbe{printer: printer, near: map[nearKey]rowPrint{}}
	if p.list, err = printer.listOf(obj); err != nil {
		return nil, false, err
	}
	items, err := meta.GetItemsPtr(p.list)
	if err != nil {
		return nil, false, fmt.Errorf("registry: table: %w", err)
	}
	p.times, movable = printer.times().find(reflect.ValueOf(items).Elem(), nil)
	if accessor, err := meta.Accessor(obj); err == nil && !accessor.GetCreationTimestamp().Time.IsZero() {
		p.since = append(p.since, accessor.GetCreationTimestamp().Time)
	}
	for _, t := range p.times {
		p.was = append(p.was, *t)
		if !slices.ContainsFunc(p.since, t.Equal) {
			p.since = append(p.since, *t)
		}
	}
	return p, movable, nil
}

// encode returns the kept row, or errVolatile.
func (p *rowProbe) encode(flags byte) ([]byte, error) {
	if err := p.begin(); err != nil {
		return nil, err
	}
	var ages []byte
	last := 0
	text, err := appendText(nil, p.plain.TableRow, func(dst []byte, i int) ([]byte, error) {
		if p.constant(i) {
			data, err := marshalJSON(p.plain.Cells[i])
			return append(dst, data...), err
		}
		before, since, after, err := p.age(i)
		if err != nil {
			return dst, err
		}
		dst = appendString(append(dst, '"'), before)
		ages = binary.AppendUvarint(ages, uint64(len(dst)-last))
		ages = binary.AppendVarint(ages, since.Unix())
		ages = binary.AppendUvarint(ages, uint64(since.Nanosecond()))
		last = len(dst)
		return append(appendString(dst, after), '"'), nil
	})
	if err != nil {
		return nil, err
	}
	return joinRow(flags, text, ages), nil
}

// begin makes the prints that every row needs.
func (p *rowProbe) begin() (err error) {
	if p.plain, err = p.print(0, nil); err != nil || len(p.times) == 0 {
		return err
	}
	first := slices.MinFunc(p.was, time.Time.Compare)
	last := slices.MaxFunc(p.was, time.Time.Compare)
	if last.Unix()-first.Unix() > int64(maxSpread/time.Second) {
		return errVolatile
	}
	if p.far, err = p.print(time.Now().Add(-farAge).Unix()-last.Unix()-1, nil); err != nil {
		return err
	}
	near, err := p.nearTo(nearKey{})
	if err != nil {
		return err
	}
	same := len(p.plain.Cells) == len(p.far.Cells) && len(p.plain.Cells) == len(near.Cells) &&
		reflect.DeepEqual(p.plain.Conditions, p.far.Conditions) && reflect.DeepEqual(p.plain.Conditions, near.Conditions)
	if !same {
		return errVolatile
	}
	return nil
}

// print prints the object with each time moved by seconds, and what more says.
func (p *rowProbe) print(seconds int64, more func(time.Time) time.Duration) (rowPrint, error) {
	for i, was := range p.was {
		*p.times[i] = moved(was, seconds)
		if more != nil {
			*p.times[i] = p.times[i].Add(more(was))
		}
	}
	out := rowPrint{seconds: seconds, begun: time.Now()}
	var err error
	out.TableRow, err = printRow(p.printer.printer, p.list)
	out.ended = time.Now()
	if errors.Is(err, errRows) {
		err = errVolatile
	}
	return out, err
}

// moved is t some seconds later, which may be more than a Duration holds.
func moved(t time.Time, seconds int64) time.Time {
	return time.Unix(t.Unix()+seconds, int64(t.Nanosecond())).In(t.Location())
}

// nearTo returns a print in which the age of a time is nearAge.
func (p *rowProbe) nearTo(key nearKey) (rowPrint, error) {
	if out, ok := p.near[key]; ok {
		return out, nil
	}
	since := p.since[key.since]
	for range 3 {
		goal := time.Now().Add(-nearAge)
		seconds := goal.Unix() - since.Unix()
		rest := goal.Sub(moved(since, seconds))
		out, err := p.print(seconds, func(t time.Time) time.Duration {
			if crowds(t, since) {
				return rest + key.apart
			}
			return rest
		})
		if err != nil {
			return out, err
		}
		if out.ended.Sub(goal) < nearAge+nearLatency {
			p.near[key] = out
			return out, nil
		}
	}
	return rowPrint{}, errVolatile // too slow to tell
}

// crowds reports whether t is another time than since, and seconds do not tell it.
func crowds(t, since time.Time) bool {
	return !t.Equal(since) && t.Sub(since).Abs() < time.Second
}

// constant reports whether the i-th cell holds no age.
func (p *rowProbe) constant(i int) bool {
	if len(p.times) == 0 {
		return true
	}
	plain, near, far := p.plain.Cells[i], p.near[nearKey{}].Cells[i], p.far.Cells[i]
	return reflect.DeepEqual(plain, far) && reflect.DeepEqual(plain, near) || p.dated(i)
}

// dated reports whether the i-th cell is the date of creation.
func (p *rowProbe) dated(i int) bool {
	for _, print := range []rowPrint{p.plain, p.far} {
		if print.Cells[i] != moved(p.since[0], print.seconds).UTC().Format(time.RFC3339) {
			return false
		}
	}
	return true
}

// age returns what an age in the i-th cell is counted from and what stands around
// it, or errVolatile.
func (p *rowProbe) age(i int) (before string, since time.Time, after string, err error) {
	plain, ok := p.plain.Cells[i].(string)
	if !ok {
		return "", since, "", errVolatile
	}
	for n, since := range p.since {
		if !strings.Contains(plain, p.plain.ages(since)[0]) && !strings.Contains(plain, p.plain.ages(since)[1]) {
			continue
		}
		before, after, ok, err := p.counts(i, n)
		if ok || err != nil {
			return before, since, after, err
		}
	}
	return "", since, "", errVolatile
}

// ages are the texts that the age of since can have in r.
func (r rowPrint) ages(since time.Time) [2]string {
	since = moved(since, r.seconds)
	return [2]string{duration.HumanDuration(r.begun.Sub(since)), duration.HumanDuration(r.ended.Sub(since))}
}

// counts finds out whether the i-th cell is the age of the n-th time, and what
// stands around it.
func (p *rowProbe) counts(i, n int) (before, after string, ok bool, err error) {
	keys := []nearKey{{since: n}}
	if slices.ContainsFunc(p.was, func(t time.Time) bool { return crowds(t, p.since[n]) }) {
		keys = []nearKey{{n, apart}, {n, -apart}}
	}
	var nears []any
	for _, key := range keys {
		near, err := p.nearTo(key)
		if err != nil {
			return "", "", false, err
		}
		if len(near.Cells) != len(p.plain.Cells) {
			return "", "", false, errVolatile
		}
		nears = append(nears, near.Cells[i])
	}
	text, _ := nears[0].(string)
	for at := range text {
		if !strings.HasPrefix(text[at:], nearText) || slices.ContainsFunc(nears, func(cell any) bool { return cell != text }) {
			continue
		}
		before, after = text[:at], text[at+len(nearText):]
		if p.plain.says(i, p.since[n], before, after) && p.far.says(i, p.since[n], before, after) {
			return before, after, true, nil
		}
	}
	return "", "", false, nil
}

// says reports whether the i-th cell is the age of since with that around it.
func (r rowPrint) says(i int, since time.Time, before, after string) bool {
	ages := r.ages(since)
	return r.Cells[i] == before+ages[0]+after || r.Cells[i] == before+ages[1]+after
}
