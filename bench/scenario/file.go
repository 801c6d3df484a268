package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/thresholds"
)

// Version is the version of the files that Read reads.
const Version = 1

// file is the contents of a file.
type file struct {
	Version    int        `yaml:"version"`
	Seed       seed       `yaml:"seed"`
	Warmup     duration   `yaml:"warmup"`
	Users      []user     `yaml:"users"`
	Workloads  []workload `yaml:"workloads"`
	Thresholds []string   `yaml:"thresholds"`
}

// seed has the numbers that larder-bench seed was given.
type seed struct {
	Pods       int `yaml:"pods"`
	Namespaces int `yaml:"namespaces"`
	Nodes      int `yaml:"nodes"`
}

// user is a user of workloads, by impersonation or by its token.
type user struct {
	Name        string   `yaml:"name"`
	Impersonate string   `yaml:"impersonate"`
	Groups      []string `yaml:"groups"`
	Token       string   `yaml:"token"`
}

// workload is one entry of workloads.
type workload struct {
	Name          string   `yaml:"name"`
	Do            string   `yaml:"do"`
	User          string   `yaml:"user"`
	Path          string   `yaml:"path"`
	LabelSelector string   `yaml:"labelSelector"`
	FieldSelector string   `yaml:"fieldSelector"`
	Accept        string   `yaml:"accept"`
	Encoding      string   `yaml:"acceptEncoding"`
	Namespace     string   `yaml:"namespace"`
	Objects       int      `yaml:"objects"`
	Watchers      int      `yaml:"watchers"`
	Clients       int      `yaml:"clients"`
	Requests      int      `yaml:"requests"`
	Rate          float64  `yaml:"rate"`
	Duration      duration `yaml:"duration"`
	Stages        string   `yaml:"stages"`
	Warmup        duration `yaml:"warmup"`
	StartAfter    duration `yaml:"startAfter"`

	schedule bench.Schedule
	total    int // how many operations there are, 0 if only time ends it
}

// duration is a time.Duration as Go writes it.
type duration time.Duration

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *duration) UnmarshalYAML(node *yaml.Node) error {
	parsed, err := time.ParseDuration(node.Value)
	if err != nil || parsed < 0 {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %q is no length of time such as 30s", node.Line, node.Value)}}
	}
	*d = duration(parsed)
	return nil
}

// accepts are the short names of media types.
func accepts() map[string]string {
	return map[string]string{"protobuf": bench.Protobuf, "json": bench.JSON, "table": bench.Table, "metadata": bench.PartialProtobuf}
}

// kinds of workloads, and the fields that each heeds beside those that all do.
func kinds() map[string][]string {
	return map[string][]string{
		"read":      {"path", "labelSelector", "fieldSelector", "accept", "acceptEncoding", "requests", "rate"},
		"watchlist": {"path", "labelSelector", "fieldSelector", "accept", "requests"},
		"mixed":     {"requests", "rate"},
		"patch":     {"objects", "requests", "rate"},
		"write":     {"namespace", "objects", "rate"},
		"watch":     {"path", "labelSelector", "fieldSelector", "accept", "objects", "watchers", "requests", "rate"},
	}
}

// common are the fields of workloads that all kinds heed.
var common = []string{"name", "do", "user", "clients", "duration", "stages", "warmup", "startAfter"}

// reader reads one file and gathers what is wrong with it.
type reader struct {
	name     string
	file     file
	root     *yaml.Node
	problems []error
}

// Read reads a file. Errors call it name.
func Read(name string, from io.Reader) (*Scenario, error) {
	text, err := io.ReadAll(from)
	if err != nil {
		return nil, fmt.Errorf("scenario: %w", err)
	}
	r := &reader{name: name}
	r.decode(text)
	if len(r.problems) > 0 {
		return nil, errors.Join(r.problems...)
	}
	s := &Scenario{name: name, seed: bench.SeedConfig{Pods: r.file.Seed.Pods, Namespaces: r.file.Seed.Namespaces, Nodes: r.file.Seed.Nodes}, users: r.file.Users}
	r.check(s)
	if len(r.problems) > 0 {
		return nil, errors.Join(r.problems...)
	}
	s.workloads = r.file.Workloads
	return s, nil
}

// fail notes what is wrong in a line, 0 for the file as a whole.
func (r *reader) fail(line int, format string, args ...any) {
	at := r.name
	if line > 0 {
		at += ":" + strconv.Itoa(line)
	}
	r.problems = append(r.problems, fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...)))
}

// decode reads the file strictly, and once more as nodes, which have lines.
func (r *reader) decode(text []byte) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	err := decoder.Decode(&r.file)
	var wrong *yaml.TypeError
	switch {
	case errors.Is(err, io.EOF):
		r.fail(0, "the file is empty: want at least version and workloads")
		return
	case errors.As(err, &wrong):
		for _, text := range wrong.Errors {
			r.failAt(text)
		}
		return
	case err != nil:
		r.failAt(strings.TrimPrefix(err.Error(), "yaml: "))
		return
	}
	if err := decoder.Decode(new(file)); !errors.Is(err, io.EOF) {
		r.fail(0, "the file has several documents: want one")
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		r.failAt(err.Error())
		return
	}
	r.root = document.Content[0]
}

// failAt notes an error of the YAML library, which begins with the line.
func (r *reader) failAt(text string) {
	line := 0
	if found := regexp.MustCompile(`^line (\d+): (.*)$`).FindStringSubmatch(text); found != nil {
		line, _ = strconv.Atoi(found[1])
		text = found[2]
	}
	if found := regexp.MustCompile(`^field (.+) not found in type`).FindStringSubmatch(text); found != nil {
		text = fmt.Sprintf("there is no field %q here", found[1])
	}
	text = strings.NewReplacer("!!str", "text", "!!int", "number", "!!float", "number", "!!map", "fields", "!!seq", "list",
		" into int", ": want a whole number", " into float64", ": want a number", " into string", ": want text",
		" into []string", ": want a list of texts", " into []scenario.workload", ": want a list of workloads", " into []scenario.user", ": want a list of users",
		" into scenario.file", ": want the fields of a scenario", " into scenario.workload", ": want the fields of a workload", " into scenario.user", ": want the fields of a user", " into scenario.seed", ": want the fields of seed").Replace(text)
	r.fail(line, "%s", text)
}

// line is where a field stands, or else what it would stand in. Numbers in path are places in
// lists.
func (r *reader) line(path ...any) int {
	node := r.root
	for _, step := range path {
		switch step := step.(type) {
		case int:
			if node.Kind != yaml.SequenceNode || step >= len(node.Content) {
				return node.Line
			}
			node = node.Content[step]
		case string:
			at := field(node, step)
			if at == nil {
				return node.Line
			}
			node = at
		}
	}
	return node.Line
}

// field is the value of a field, nil if there is none.
func field(node *yaml.Node, name string) *yaml.Node {
	if node.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == name {
			return node.Content[i+1]
		}
	}
	return nil
}

// check notes what makes no sense, and completes the workloads.
func (r *reader) check(s *Scenario) {
	f := &r.file
	if f.Version != Version {
		r.fail(r.line("version"), "version is %d, want %d", f.Version, Version)
	}
	if len(f.Workloads) == 0 {
		r.fail(r.line("workloads"), "there are no workloads")
	}
	names := make(map[string]bool)
	for i, u := range f.Users {
		line := r.line("users", i)
		switch {
		case u.Name == "" || names["user "+u.Name]:
			r.fail(line, "want a name for each user, and another one for each")
		case (u.Impersonate == "") == (u.Token == ""):
			r.fail(line, "user %q: want either impersonate, with groups if need be, or token", u.Name)
		case u.Token != "" && len(u.Groups) > 0:
			r.fail(line, "user %q: groups belong to impersonate", u.Name)
		}
		names["user "+u.Name] = true
	}
	for i := range f.Workloads {
		w := &f.Workloads[i]
		if w.Name == "" {
			w.Name = w.Do
		}
		if names[w.Name] {
			r.fail(r.line("workloads", i, "name"), "two workloads have the name %q", w.Name)
		}
		names[w.Name] = true
		if w.User != "" && !names["user "+w.User] {
			r.fail(r.line("workloads", i, "user"), "there is no user %q among users", w.User)
		}
		r.checkWorkload(i, w)
	}
	for i, text := range f.Thresholds {
		if err := s.bound(text); err != nil {
			r.fail(r.line("thresholds", i), "%s", strings.TrimPrefix(err.Error(), "thresholds: "))
		}
	}
}

// bound adds a threshold such as max-p99 list pods=200ms.
func (s *Scenario) bound(text string) error {
	name, value, _ := strings.Cut(text, " ")
	for _, f := range thresholds.Figures() {
		if f.Name == name {
			b, err := thresholds.ParseBound(f, strings.TrimSpace(value))
			if err == nil {
				s.Thresholds = append(s.Thresholds, b)
			}
			return err
		}
	}
	return fmt.Errorf("%q: want the name of a threshold and its bound, such as max-p99 NAME=200ms", text)
}

// checkWorkload notes what makes no sense in one workload, and completes it.
func (r *reader) checkWorkload(i int, w *workload) {
	heeded, ok := kinds()[w.Do]
	if !ok {
		var all []string
		for kind := range kinds() {
			all = append(all, kind)
		}
		slices.Sort(all)
		r.fail(r.line("workloads", i, "do"), "do is %q: want one of %s", w.Do, strings.Join(all, ", "))
		return
	}
	node := r.root
	if node = field(node, "workloads"); node != nil && i < len(node.Content) {
		for at := 0; at+1 < len(node.Content[i].Content); at += 2 {
			key := node.Content[i].Content[at]
			if !slices.Contains(heeded, key.Value) && !slices.Contains(common, key.Value) {
				r.fail(key.Line, "%s does not heed %q, but %s", w.Do, key.Value, strings.Join(heeded, ", "))
			}
		}
	}
	at := func(name string) int { return r.line("workloads", i, name) }
	for name, n := range map[string]int{"objects": w.Objects, "watchers": w.Watchers, "clients": w.Clients, "requests": w.Requests} {
		if n < 0 {
			r.fail(at(name), "%s is %d: want 0 or more", name, n)
		}
	}
	r.checkPath(i, w)
	r.checkSchedule(i, w)
	if slices.Contains([]string{"mixed", "patch", "watch"}, w.Do) && (r.file.Seed.Pods < 1 || r.file.Seed.Namespaces < 1 || r.file.Seed.Nodes < 1) {
		r.fail(at("do"), "%s is about pods: say by seed: {pods: …, namespaces: …, nodes: …} which larder-bench seed has made", w.Do)
	}
	if w.Do == "patch" || w.Do == "watch" {
		if w.Objects == 0 {
			w.Objects = min(50, r.file.Seed.Pods)
		}
		if w.Objects > r.file.Seed.Pods {
			r.fail(at("objects"), "objects is %d, but seed has %d pods", w.Objects, r.file.Seed.Pods)
		}
	}
	if w.Do == "watch" && w.Watchers == 0 {
		r.fail(at("watchers"), "want watchers")
	}
}

// checkPath completes the path and what is asked for.
func (r *reader) checkPath(i int, w *workload) {
	if !slices.Contains(kinds()[w.Do], "path") {
		return
	}
	if w.Path == "" && w.Do == "watch" {
		w.Path = "/api/v1/pods"
	}
	if !strings.HasPrefix(w.Path, "/") || strings.ContainsFunc(w.Path, func(c rune) bool { return c <= ' ' || c > '~' }) {
		r.fail(r.line("workloads", i, "path"), "path is %q: want one such as /api/v1/pods, with all but ASCII escaped", w.Path)
	}
	var query []string
	for _, s := range [][2]string{{"labelSelector", w.LabelSelector}, {"fieldSelector", w.FieldSelector}} {
		if s[1] != "" {
			query = append(query, s[0]+"="+url.QueryEscape(s[1]))
		}
	}
	if len(query) > 0 {
		mark := "?"
		if strings.Contains(w.Path, "?") {
			mark = "&"
		}
		w.Path += mark + strings.Join(query, "&")
	}
	if full, ok := accepts()[w.Accept]; ok {
		w.Accept = full
	}
	if w.Accept == "" {
		w.Accept = bench.Protobuf
	}
	if !strings.Contains(w.Accept, "/") {
		r.fail(r.line("workloads", i, "accept"), "accept is %q: want protobuf, json, table, metadata, or a media type", w.Accept)
	}
}

// checkSchedule makes the workload's Schedule.
func (r *reader) checkSchedule(i int, w *workload) {
	line := r.line("workloads", i)
	count := w.Requests
	if w.Do == "write" {
		count = w.Objects
	}
	ends := 0
	for _, given := range []bool{count > 0, w.Duration > 0, w.Stages != ""} {
		if given {
			ends++
		}
	}
	switch {
	case ends != 1:
		r.fail(line, "workload %q: want one of requests (of write, objects), duration and stages, which says when it ends", w.Name)
		return
	case w.Rate < 0:
		r.fail(r.line("workloads", i, "rate"), "rate is %g: want 0 or more", w.Rate)
	case w.Stages != "" && w.Rate > 0:
		r.fail(r.line("workloads", i, "rate"), "stages say what the rate is: leave out rate")
	}
	w.Clients = max(1, w.Clients)
	if w.Warmup == 0 {
		w.Warmup = r.file.Warmup
	}
	var err error
	if w.schedule, err = bench.NewSchedule(w.Stages, time.Duration(w.Duration), time.Duration(w.Warmup), w.Rate, &w.Clients); err != nil {
		r.fail(r.line("workloads", i, "stages"), "%s", strings.TrimPrefix(err.Error(), "stages: "))
		return
	}
	plan := w.schedule.Plan
	switch {
	case plan.IsZero():
		w.total = count
	case plan.Open:
		w.total = plan.Operations()
	case w.Do == "write" || w.Do == "watch":
		r.fail(line, "%s must know how many operations there are: give requests (of write, objects), or rates", w.Do)
	}
	if plan.Open && w.Do == "watchlist" {
		r.fail(line, "watchlist is a closed loop: plan numbers of clients")
	}
}
