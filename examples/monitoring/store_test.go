package monitoring

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// store has scraped and recorded series, and evaluates queries. One goroutine at a time may use it, beside the engine's.
type store struct {
	engine *promql.Engine
	series map[string]*series // by labels
}

type series struct {
	labels  labels.Labels
	samples []chunks.Sample
}

func newStore(t *testing.T) *store {
	s := &store{series: make(map[string]*series)}
	s.engine = promql.NewEngine(promql.EngineOpts{MaxSamples: 1 << 24, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, EnableAtModifier: true, EnableNegativeOffset: true})
	t.Cleanup(func() { s.engine.Close() })
	return s
}

func (s *store) append(l labels.Labels, at time.Time, value float64) {
	key := l.String()
	if s.series[key] == nil {
		s.series[key] = &series{labels: l}
	}
	s.series[key].samples = append(s.series[key].samples, sample{at.UnixMilli(), value})
}

// scrape stores a server's metrics at a time, with the labels of the target.
func (s *store) scrape(t *testing.T, metrics []byte, target map[string]string, at time.Time) {
	t.Helper()
	p, err := textparse.New(metrics, "text/plain; version=0.0.4", labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var own labels.Labels
		p.Labels(&own)
		_, _, value := p.Series()
		b := labels.NewBuilder(own)
		for name, text := range target {
			b.Set(name, text)
		}
		s.append(b.Labels(), at, value)
	}
	s.append(labels.FromMap(map[string]string{"__name__": "up", "job": target["job"], "instance": target["instance"]}), at, 1)
}

// query evaluates an expression.
func (s *store) query(t *testing.T, expression string, at time.Time) promql.Vector {
	t.Helper()
	q, err := s.engine.NewInstantQuery(context.Background(), s, nil, expression, at)
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	defer q.Close()
	result := q.Exec(context.Background())
	if result.Err != nil {
		t.Fatalf("%s: %v", expression, result.Err)
	}
	switch value := result.Value.(type) {
	case promql.Vector:
		return slices.Clone(value)
	case promql.Scalar:
		return promql.Vector{{F: value.V}}
	}
	t.Fatalf("%s: is of type %s", expression, result.Value.Type())
	return nil
}

// record evaluates the recording rules and stores their series.
func (s *store) record(t *testing.T, groups *rulefmt.RuleGroups, at time.Time) {
	t.Helper()
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			if rule.Record == "" {
				continue
			}
			for _, found := range s.query(t, rule.Expr, at) {
				b := labels.NewBuilder(found.Metric)
				b.Set("__name__", rule.Record)
				for name, text := range rule.Labels {
					b.Set(name, text)
				}
				s.append(b.Labels(), at, found.F)
			}
		}
	}
}

// unmatched returns the selectors of an expression that match no series.
func (s *store) unmatched(t *testing.T, expression string) []string {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expression)
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	var list []string
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok && !s.Select(context.Background(), false, nil, selector.LabelMatchers...).Next() {
			list = append(list, selector.String())
		}
		return nil
	})
	return list
}

// Querier implements storage.Queryable.
func (s *store) Querier(int64, int64) (storage.Querier, error) { return s, nil }

// Select implements storage.Querier.
func (s *store) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var found []storage.Series
next:
	for _, series := range s.series {
		for _, m := range matchers {
			if !m.Matches(series.labels.Get(m.Name)) {
				continue next
			}
		}
		found = append(found, storage.NewListSeries(series.labels, series.samples))
	}
	slices.SortFunc(found, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
	return &seriesSet{found: found, at: -1}
}

// LabelValues implements storage.LabelQuerier; no query calls it.
func (s *store) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, errors.ErrUnsupported
}

// LabelNames implements storage.LabelQuerier; no query calls it.
func (s *store) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, errors.ErrUnsupported
}

// Close implements storage.LabelQuerier.
func (s *store) Close() error { return nil }

// seriesSet iterates over the series that Select found.
type seriesSet struct {
	found []storage.Series
	at    int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at < len(s.found) }
func (s *seriesSet) At() storage.Series                { return s.found[s.at] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// names lists the stored metrics, for messages of failures.
func (s *store) names(prefix string) []string {
	var list []string
	for _, series := range s.series {
		if name := series.labels.Get("__name__"); strings.HasPrefix(name, prefix) && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// sample is one sample of a series.
type sample struct {
	at    int64 // milliseconds
	value float64
}

func (s sample) T() int64                      { return s.at }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }
