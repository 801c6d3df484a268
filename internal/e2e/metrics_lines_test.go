package e2e_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// line is a log line about a request: its keys, in order, and the status code.
type line struct {
	Keys []string
	Resp string
}

var (
	requestLine = regexp.MustCompile(`^I\d{4} [\d:.]+ +\d+ \w+\.go:\d+\] "HTTP" (.*)$`)
	pairOfLine  = regexp.MustCompile(`([\w-]+)=("(?:[^"\\]|\\.)*"|\S+)`)
)

// lines returns the log lines of the traffic, by verb and URI. Of several, it returns the last.
func lines(t *testing.T, log string) map[string]line {
	t.Helper()
	all := make(map[string]line)
	for text := range strings.Lines(log) {
		found := requestLine.FindStringSubmatch(strings.TrimSuffix(text, "\n"))
		if found == nil || !strings.Contains(text, `userAgent="meter/1.0"`) {
			continue
		}
		var l line
		values := make(map[string]string)
		for _, pair := range pairOfLine.FindAllStringSubmatch(found[1], -1) {
			l.Keys = append(l.Keys, pair[1])
			values[pair[1]] = strings.Trim(pair[2], `"`)
		}
		l.Resp = values["resp"]
		for _, key := range []string{"latency", "audit-ID", "srcIP"} {
			if values[key] == "" {
				t.Errorf("%s is empty: %s", key, text)
			}
		}
		all[values["verb"]+" "+values["URI"]+" "+l.Resp] = l
	}
	if len(all) == 0 {
		t.Error("invalid: the log has no lines about requests")
	}
	return all
}

func (d *metricDifferences) compareLines(stock, larder map[string]line) {
	d.t.Helper()
	for what := range union(stock, larder) {
		a, b := stock[what], larder[what]
		if !slices.Equal(a.Keys, b.Keys) {
			d.differ(what, "line", "stock %v, larder %v", a.Keys, b.Keys)
		}
	}
}
