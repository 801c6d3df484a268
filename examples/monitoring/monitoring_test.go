package monitoring

import (
	"bytes"
	"encoding/json"
	"flag"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"
)

var (
	rulesFile     = flag.String("rules", "", "file of Prometheus rules, or of a PrometheusRule, to test too; rules about other programs are skipped")
	dashboardFile = flag.String("dashboard", "", "file of a Grafana dashboard to test too")
	selected      = flag.String("groups", "apiserver", "regular expression of the groups of -rules to test")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	rounds   = 12
	interval = 30 * time.Second // between scrapes, by the clock of the rules
)

// TestExpressionsFindSomething runs a server, some traffic and Prometheus' engine. It checks that the server has the
// metrics that all rules select, and that every query of a dashboard has a result.
func TestExpressionsFindSomething(t *testing.T) {
	docs := filepath.Join("..", "..", "docs", "monitoring")
	groups := rulesIn(t, filepath.Join(docs, "rules.yaml"), ".")
	dashboards := []string{filepath.Join(docs, "dashboard.json")}
	if *rulesFile != "" {
		groups.Groups = append(groups.Groups, rulesIn(t, *rulesFile, *selected).Groups...)
	}
	if *dashboardFile != "" {
		dashboards = append(dashboards, *dashboardFile)
	}

	s, metrics := serve(t), newStore(t)
	s.prepare(t)
	s.watch(t)
	target := map[string]string{"job": "apiserver", "instance": strings.TrimPrefix(s.url, "https://")}
	at := time.Now()
	for round := range rounds {
		s.traffic(t, round)
		code, text := s.send(t, "GET", "/metrics", "json", "")
		if code != 200 {
			t.Fatalf("/metrics: %d %s", code, text)
		}
		at = at.Add(interval)
		metrics.scrape(t, text, target, at)
		metrics.record(t, groups, at)
	}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			t.Run(group.Name+"/"+rule.Record+rule.Alert, func(t *testing.T) { checkRule(t, metrics, rule, at) })
		}
	}
	for _, selector := range mixin {
		if missing := metrics.unmatched(t, selector); len(missing) > 0 {
			t.Errorf("no series matches %s", missing)
		}
	}
	for _, dashboard := range dashboards {
		for title, expressions := range panelsOf(t, dashboard, target["instance"]) {
			t.Run(filepath.Base(dashboard)+"/"+title, func(t *testing.T) {
				for _, expression := range expressions {
					if len(metrics.query(t, expression, at)) == 0 {
						t.Errorf("%s has no result; selectors without series: %q", expression, metrics.unmatched(t, expression))
					}
				}
			})
		}
	}
}

// mixin lists the series that kubernetes-mixin's API server rules and dashboard select, with the
// labels that they need.
var mixin = []string{
	`apiserver_request_total{verb=~"LIST|GET",code=~"2..",resource!=""}`,
	`apiserver_request_total{verb=~"LIST|GET",code=~"5.."}`,
	`apiserver_request_total{verb=~"POST|PUT|PATCH|DELETE",code=~"2..",resource!=""}`,
	`apiserver_request_total{verb=~"POST|PUT|PATCH|DELETE",code=~"5.."}`,
	`apiserver_request_sli_duration_seconds_count{verb="LIST",subresource!~"proxy|attach|log|exec|portforward"}`,
	`apiserver_request_sli_duration_seconds_bucket{verb="GET",scope="resource",le=~"1(\\.0)?"}`,
	`apiserver_request_sli_duration_seconds_bucket{verb="LIST",scope="namespace",le=~"5(\\.0)?"}`,
	`apiserver_request_sli_duration_seconds_bucket{verb="LIST",scope="cluster",le=~"30(\\.0)?"}`,
	`apiserver_request_sli_duration_seconds_bucket{verb="POST",le=~"1(\\.0)?"}`,
	`apiserver_request_terminations_total`,
	`apiserver_client_certificate_expiration_seconds_bucket`,
	`apiserver_client_certificate_expiration_seconds_count`,
	`aggregator_unavailable_apiservice{name="v1.example.com"}`,
	`aggregator_unavailable_apiservice_total{name="v1.example.com",reason!=""}`,
	`workqueue_adds_total{name!=""}`,
	`workqueue_depth{name!=""}`,
	`workqueue_queue_duration_seconds_bucket{name!=""}`,
	`process_resident_memory_bytes`,
	`process_cpu_seconds_total`,
	`go_goroutines`,
}

// checkRule checks that each metric of a rule exists. It may lack the series of events that did not happen. A recording
// rule must record something if all its selectors match.
func checkRule(t *testing.T, metrics *store, rule rulefmt.Rule, at time.Time) {
	found, unmatched := metrics.query(t, rule.Expr, at), metrics.unmatched(t, rule.Expr)
	if rule.Record != "" && len(found) == 0 && len(unmatched) == 0 {
		t.Errorf("records nothing: %s", rule.Expr)
	}
	for _, selector := range unmatched {
		name, _, _ := strings.Cut(selector, "{")
		if len(metrics.names(name)) == 0 {
			t.Errorf("no metric %s", name)
		}
	}
}

// rulesIn reads a file as promtool does, and returns the named groups.
func rulesIn(t *testing.T, name, groups string) *rulefmt.RuleGroups {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var object struct{ Spec yaml.Node }
	if err := yaml.Unmarshal(text, &object); err == nil && !object.Spec.IsZero() {
		if text, err = yaml.Marshal(&object.Spec); err != nil {
			t.Fatal(err)
		}
	}
	read, errs := rulefmt.Parse(text, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Errorf("%s: %v", name, err)
	}
	if t.Failed() {
		t.FailNow()
	}
	selects := regexp.MustCompile(groups)
	read.Groups = slices.DeleteFunc(read.Groups, func(g rulefmt.RuleGroup) bool { return !selects.MatchString(g.Name) })
	if len(read.Groups) == 0 {
		t.Fatalf("no group in %s matches %q", name, groups)
	}
	return read
}

// panelsOf returns the expressions of a dashboard by the title of their panel, with its
// variables filled in.
func panelsOf(t *testing.T, name, instance string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&dashboard); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$instance", instance, "$job", "apiserver", "$cluster", "")
	panels := make(map[string][]string)
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			title := url.PathEscape(panel.Title)
			panels[title] = append(panels[title], variables.Replace(target.Expr))
		}
	}
	if len(panels) == 0 {
		t.Fatalf("%s has no panels", name)
	}
	return panels
}
