package baseline_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/baseline"
	"github.com/larder-io/larder/bench/benchtest"
)

// fasthttp starts two goroutines that cannot be stopped.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
	)
}

// serve writes a tape to a file, reads it again, serves it, and returns the server.
func serve(t *testing.T, tape baseline.Tape) *bench.Target {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tape")
	if err := tape.Save(file); err != nil {
		t.Fatal(err)
	}
	read, err := baseline.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- baseline.New(read).Run(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	target, err := bench.TargetOf(&rest.Config{Host: "https://" + l.Addr().String(), TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// TestServesWhatWasRecorded records a server's responses and runs the same workloads on the tape.
func TestServesWhatWasRecorded(t *testing.T) {
	_, kubeconfig := benchtest.Start(t)
	origin, err := bench.NewTarget(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	seed := bench.SeedConfig{Pods: 8, Namespaces: 2, Nodes: 2, Clients: 2}
	if _, err := bench.Seed(t.Context(), origin, seed); err != nil {
		t.Fatal(err)
	}
	const path = "/api/v1/pods"
	list, err := origin.Capture(t.Context(), bench.Request{Path: path, Accept: bench.JSON})
	if err != nil {
		t.Fatal(err)
	}
	watchList, err := origin.CaptureWatchList(t.Context(), bench.Request{Path: bench.WatchListPath(path), Accept: bench.Protobuf})
	if err != nil {
		t.Fatal(err)
	}
	event, err := origin.CaptureChange(t.Context(), path, seed.PodPath(0), bench.Protobuf)
	if err != nil {
		t.Fatal(err)
	}
	target := serve(t, baseline.Tape{Event: event, Responses: map[string][]byte{
		baseline.Key(path, bench.JSON, ""):                          list,
		baseline.Key(bench.WatchListPath(path), bench.Protobuf, ""): watchList,
	}})
	read, err := bench.Read(t.Context(), target, bench.ReadConfig{Path: path, Accept: bench.JSON, Load: bench.Load{Operations: 5, Clients: 2}})
	if err != nil || read.Failures() != 0 || read.Bytes != int64(5*len(list)) {
		t.Errorf("LIST: %+v, %v; want %d bytes five times", read, err, len(list))
	}
	listed, err := bench.WatchList(t.Context(), target, bench.WatchListConfig{Path: path, Accept: bench.Protobuf, Load: bench.Load{Operations: 3, Clients: 2}, Objects: 8})
	if err != nil || listed.Ops != 3 || listed.Failures() != 0 {
		t.Errorf("WatchList: %+v, error %v", listed, err)
	}
	watched, err := bench.Watch(t.Context(), target, bench.WatchConfig{
		Path: path, Accept: bench.Protobuf, Watchers: 6, Objects: seed.PodPaths(3), Load: bench.Load{Operations: 10, Clients: 2},
	})
	if err != nil || watched.Ops != 60 || watched.Failures() != 0 || watched.BytesPerOp() != int64(len(event)-4) {
		t.Errorf("watch: %+v, %v; want 60 deliveries of %d bytes", watched, err, len(event)-4)
	}
	if version, err := target.Version(t.Context()); version != "limit" || err != nil {
		t.Errorf("version %q, error %v", version, err)
	}
}

// TestInvalidTapes checks that an event without a mark cannot be sent, and that a file that is no tape cannot be read.
func TestInvalidTapes(t *testing.T) {
	target := serve(t, baseline.Tape{})
	err := target.Change(t.Context(), "/api/v1/namespaces/a/pods/b")
	if err == nil || !strings.Contains(err.Error(), "400") {
		t.Errorf("an event without a mark: error %v", err)
	}
	file := filepath.Join(t.TempDir(), "tape")
	if err := os.WriteFile(file, []byte("no tape"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := baseline.Load(file); err == nil {
		t.Error("a file that is no tape was read")
	}
}
