package writecosts

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/cmd/larder/internal/server/servertest"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv/kvtest"
)

var rewrite = flag.Bool("rewrite", false, "record what writes cost now")

// The variables make the test binary run as another process. Their values configure the process.
const (
	memberVariable  = "LARDER_WRITECOSTS_MEMBER"
	countedVariable = "LARDER_WRITECOSTS_COUNTED"
)

func TestMain(m *testing.M) {
	proctest.ShortTemp()
	var err error
	if raw := os.Getenv(memberVariable); raw != "" {
		err = kvtest.RunMember(raw)
	} else if raw := os.Getenv(countedVariable); raw != "" {
		go serveCounts(os.Stdin, os.NewFile(3, "counts"))
		err = servertest.Run(raw)
	} else {
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestWriteCosts compares the work of a server for one write of each kind with testdata/writecosts.txt:
// goroutines started, encodes, decodes and deep copies of the object, and conversions between the typed
// object and a map of its fields. It fails if a count is higher; -rewrite records the current counts. -v also logs
// bytes and allocations, which are not compared.
//
// Client, server and etcd are three processes, so that the counts are the server's alone. The client
// sends one request at a time. Goroutines, bytes and allocations come from the runtime's totals. They
// include concurrent work, so that the least of several counts is used. Encodes, decodes and copies
// come from a profile of all allocations: see labelsCounted.
func TestWriteCosts(t *testing.T) {
	if testing.Short() {
		t.Skip("sends some 60 kinds of writes to one server after another")
	}
	s := startCounted(t)
	file := filepath.Join("testdata", "writecosts.txt")
	bounds := readCosts(t, file)
	var rows strings.Builder
	fmt.Fprintf(&rows, "%-44s%12s%8s%8s%8s%12s\n", "# per object", "goroutines", "encodes", "decodes", "copies", "conversions")
	for _, l := range lifecycles() {
		s.measure(t, l, func(kind string, c costs, again int64, sites map[string]int64) {
			fmt.Fprintf(&rows, "%-44s%12v%8v%8v%8v%12v\n", kind, c[0], c[1], c[2], c[3], c[4])
			bound, ok := bounds[kind]
			if !ok && !*rewrite {
				t.Errorf("%s has no row %q", file, kind)
			}
			for i, name := range costNames {
				if ok && c[i] > bound[i]+again {
					t.Errorf("%s: %v %s, want at most %v%s", kind, c[i], name, bound[i], listSites(sites, name))
				}
			}
		})
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(rows.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("\n%s", rows.String())
}

// costs are the counts of costNames, for one write of one object.
type costs [5]int64

var costNames = [5]string{"goroutines", "encodes", "decodes", "copies", "conversions"}

func readCosts(t *testing.T, file string) map[string]costs {
	t.Helper()
	rows := make(map[string]costs)
	if *rewrite {
		return rows
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if strings.HasPrefix(line, "#") || len(fields) < len(costNames) {
			continue
		}
		numbers := len(fields) - len(costNames)
		var row costs
		for i, field := range fields[numbers:] {
			if row[i], err = strconv.ParseInt(field, 10, 64); err != nil {
				t.Fatalf("%s: %q: %v", file, line, err)
			}
		}
		rows[strings.Join(fields[:numbers], " ")] = row
	}
	return rows
}

// counted is a server that counts its work, and its client.
type counted struct {
	*proctest.Process
	url      string
	client   *http.Client
	commands io.Writer
	counts   *bufio.Scanner
}

func startCounted(t *testing.T) *counted {
	t.Helper()
	members := kvtest.StartCluster(t, memberVariable, 1, kvtest.LengthenElectionTimeout)
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("tester,tester,tester,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	port := proctest.Port(t)
	role := proctest.Role(t, countedVariable, servertest.Config{
		Dir: filepath.Join(t.TempDir(), "larder"), Tokens: tokens, Port: port, Stores: kvtest.URLs(members), Modes: []string{"RBAC"},
	})
	stdin, commands, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	counts, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // a test's own server
	s := &counted{url: "https://127.0.0.1:" + strconv.Itoa(port), client: &http.Client{Transport: transport}, commands: commands, counts: bufio.NewScanner(counts)}
	s.counts.Buffer(nil, 64<<20)
	s.Process = proctest.New(t, "larder", func() *exec.Cmd {
		cmd := role()
		cmd.Stdin, cmd.ExtraFiles = stdin, []*os.File{out}
		cmd.Env = append(cmd.Env, fmt.Sprintf("GODEBUG=profstackdepth=%d", stackDepth)) // walking whole stacks takes far longer
		return cmd
	})
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		for _, f := range []*os.File{stdin, commands, counts, out} {
			f.Close()
		}
	})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.Eventually(t, "is ready", func() error { return s.try(request{method: http.MethodGet, path: "/readyz"}, nil) })
	return s
}

// send sends a command and returns the response.
func (s *counted) send(t *testing.T, command string) (w work) {
	t.Helper()
	fmt.Fprintln(s.commands, command)
	if !s.counts.Scan() {
		t.Fatalf("no response to %s: %v", command, s.counts.Err())
	}
	if err := json.Unmarshal(s.counts.Bytes(), &w); err != nil {
		t.Fatal(err)
	}
	return w
}

// request is one request; content and accept are media types, of JSON if "".
type request struct {
	method, path, content, accept string
	body                          []byte
}

// try sends a request and decodes the response's JSON into obj unless that is nil.
func (s *counted) try(r request, obj any) error {
	req, err := http.NewRequest(r.method, s.url+r.path, bytes.NewReader(r.body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer tester")
	req.Header.Set("Content-Type", cmp.Or(r.content, bench.JSON))
	req.Header.Set("Accept", cmp.Or(r.accept, bench.JSON))
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %s %s %w", r.method, r.path, resp.Status, body, err)
	}
	if obj == nil {
		return nil
	}
	return json.Unmarshal(body, obj)
}

func (s *counted) must(t *testing.T, r request, obj any) {
	t.Helper()
	if err := s.try(r, obj); err != nil {
		t.Fatal(err)
	}
}

// The first batch of writes is not counted. The next two are profiled, and the lower counts are used, because a write
// that the cache has not caught up with does some work twice. The other batches read the totals of the process; the
// last one reads them after each write.
const (
	batches  = 5
	batch    = 30
	profiled = 2 // the last profiled batch
)

// measure sends all writes of l and reports the costs of each kind of write.
func (s *counted) measure(t *testing.T, l lifecycle, report func(kind string, c costs, again int64, sites map[string]int64)) {
	t.Helper()
	for _, r := range l.before {
		s.must(t, r, nil)
	}
	s.Eventually(t, "serves "+l.collection, func() error { return s.try(request{method: http.MethodGet, path: l.collection}, nil) })
	for _, w := range l.writes {
		counts := costs{math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64}
		totals := work{Bytes: math.MaxInt64, Objects: math.MaxInt64}
		for b := range batches {
			requests := s.requests(t, l, w, b)
			if b > 0 && b <= profiled {
				s.send(t, countProfile)
			}
			before := s.send(t, countTotals)
			var started []uint64
			for _, r := range requests {
				s.must(t, r, nil)
				if b == batches-1 {
					started = append(started, s.send(t, countTotals).Goroutines)
				}
			}
			s.try(request{method: http.MethodGet, path: l.path(b, batch-1)}, nil) // waits until the cache has all
			after := s.send(t, countTotals)
			if b > 0 && b <= profiled {
				w := s.send(t, countProfiled)
				totals.Sites = w.Sites
				for i, n := range []int64{w.Encodes, w.Decodes, w.Copies, w.Conversions} {
					counts[i+1] = min(counts[i+1], perObject(n))
				}
			} else if b > profiled {
				totals.Bytes, totals.Objects = min(totals.Bytes, after.Bytes-before.Bytes), min(totals.Objects, after.Objects-before.Objects)
				counts[0] = min(counts[0], perObject(int64(after.Goroutines-before.Goroutines)), middle(before.Goroutines, started))
			}
		}
		if w.quiet {
			continue
		}
		kind := l.name + " " + w.name
		if testing.Verbose() {
			t.Logf("%s: %d bytes, %d allocations%s", kind, totals.Bytes/batch, totals.Objects/batch, listSites(totals.Sites, ""))
		}
		report(kind, counts, w.again, totals.Sites)
	}
}

// listSites lists the sites whose names have a prefix, one in a line.
func listSites(sites map[string]int64, name string) string {
	var lines strings.Builder
	for _, site := range slices.Sorted(maps.Keys(sites)) {
		if strings.HasPrefix(site, name) {
			fmt.Fprintf(&lines, "\n\t%.1f %s", float64(sites[site])/batch, site)
		}
	}
	return lines.String()
}

// perObject is a batch's count for one of its objects. Concurrent work adds less than half of it, and so do the rules
// that a server learns from the first objects.
func perObject(n int64) int64 { return int64(math.Round(float64(n) / batch)) }

// middle returns the median of the differences between one total and the next. Concurrent work on a busy machine does
// not change the median. A single request for a whole collection has none.
func middle(before uint64, totals []uint64) int64 {
	if len(totals) < batch {
		return math.MaxInt64
	}
	differences := make([]int64, len(totals))
	for i, total := range totals {
		differences[i] = int64(total - before)
		before = total
	}
	slices.Sort(differences)
	return differences[len(differences)/2]
}

// requests returns the requests of one batch.
func (s *counted) requests(t *testing.T, l lifecycle, w write, b int) []request {
	t.Helper()
	if w.collection != nil {
		return []request{w.collection(b)}
	}
	requests := make([]request, batch)
	for i := range requests {
		obj := l.object(l.objectName(b, i), b)
		if w.reads {
			s.must(t, request{method: http.MethodGet, path: l.path(b, i)}, obj)
		}
		r := w.request(l.path(b, i), obj)
		r.content, r.accept = cmp.Or(r.content, l.media), l.media
		requests[i] = r
	}
	return requests
}

// encode encodes obj as l's clients do.
func (l *lifecycle) encode(obj any) []byte {
	if l.media == bench.Protobuf {
		return bench.EncodeProtobuf(obj.(runtime.Object))
	}
	data, err := json.Marshal(obj)
	if err != nil {
		panic(err) // it is an object
	}
	return data
}
