package cluster

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/process"
)

// measuring measures one part of a simulation. It is not safe for concurrent use.
type measuring struct {
	*bench.Meter
	r      *trial
	before []byte // etcd's metrics
}

func (r *trial) measure() (m *measuring, err error) {
	m = &measuring{r: r}
	if m.before, err = r.etcdMetrics(); err != nil {
		return nil, err
	}
	m.Meter, err = r.server.Target.Meter()
	return m, err
}

// end adds the result of the part.
func (m *measuring) end(part string) (*bench.Result, error) {
	if err := m.End(); err != nil {
		return nil, err
	}
	after, err := m.r.etcdMetrics()
	if err != nil {
		return nil, err
	}
	result := &bench.Result{Name: m.r.name() + ": " + part, Unit: "request"}
	m.Charge(result)
	if rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", m.r.server.Process.PID)); err == nil {
		result.Add("resident (PSS)", float64(process.Figure(rollup, "Pss:")<<10), "B")
	}
	for _, c := range []struct{ name, metric, unit string }{
		{"ranges of etcd", "etcd_mvcc_range_total", ""}, {"puts of etcd", "etcd_mvcc_put_total", ""},
		{"sent by etcd", "etcd_network_client_grpc_sent_bytes_total", "B"},
	} {
		result.Add(c.name, metric(after, c.metric)-metric(m.before, c.metric), c.unit)
	}
	m.r.results = append(m.r.results, result)
	m.r.config.Sayf("%s: %s, %s of CPU", result.Name, bench.Duration(result.Wall), bench.Duration(result.ServerCPU))
	return result, nil
}

// perMinute adds the CPU time per minute of all processes.
func perMinute(r *bench.Result) {
	minutes := r.Wall.Minutes()
	r.Add("CPU of the server a minute", r.ServerCPU.Seconds()/minutes, "s")
	r.Add("CPU of the client a minute", r.ClientCPU.Seconds()/minutes, "s")
	for _, c := range r.Beside {
		r.Add("CPU of "+c.Name+" a minute", c.CPU.Seconds()/minutes, "s")
	}
}

// etcdMetrics returns etcd's metrics as text.
func (r *trial) etcdMetrics() ([]byte, error) {
	client := &http.Client{Timeout: time.Minute}
	resp, err := client.Get(r.started.EtcdURL() + "/metrics")
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	return text, nil
}

// metric returns the value of a metric without labels, 0 if the metric is missing.
func metric(text []byte, name string) float64 {
	_, rest, _ := bytes.Cut(text, []byte("\n"+name+" "))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	v, _ := strconv.ParseFloat(string(line), 64)
	return v
}
