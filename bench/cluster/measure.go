package cluster

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/larder-io/larder/bench/process"
	"github.com/larder-io/larder/bench/testservers"
)

// Cost is the cost of a part of a simulation.
type Cost struct {
	// Wall is how long it lasted.
	Wall time.Duration `json:"wallNanoseconds"`
	// Server, Etcd and Client are CPU time.
	Server time.Duration `json:"serverCPUNanoseconds"`
	Etcd   time.Duration `json:"etcdCPUNanoseconds"`
	Client time.Duration `json:"clientCPUNanoseconds"`
	// Usage is the server's at the end.
	Usage process.Usage `json:"serverAfter"`
	// PSS is the server's share of the memory that is resident at the end.
	PSS int64 `json:"serverPSSBytes"`
	// Ranges and Puts are how often etcd was asked for that, Sent the bytes that it answered.
	Ranges float64 `json:"etcdRanges"`
	Puts   float64 `json:"etcdPuts"`
	Sent   float64 `json:"etcdSentBytes"`
}

// perMinute is a CPU time as one minute costs.
func (c *Cost) perMinute(d time.Duration) time.Duration {
	if c.Wall <= 0 {
		return 0
	}
	return time.Duration(float64(d) * float64(time.Minute) / float64(c.Wall))
}

// measuring is a measurement under way. One goroutine uses it.
type measuring struct {
	r      *trial
	began  time.Time
	server []process.Process // the last one is measured at the end
	before Cost
	used   time.Duration // by servers that have ended
}

func (r *trial) measure() (*measuring, error) {
	m := &measuring{r: r, began: time.Now(), server: []process.Process{r.server.Process}}
	err := m.read(&m.before)
	return m, err
}

// also goes on with a server that takes the place of one that has ended.
func (m *measuring) also(ended, next *testservers.Server) {
	m.used += ended.Used() - m.before.Server
	m.server = append(m.server, next.Process)
}

// read reads what has been used.
func (m *measuring) read(c *Cost) error {
	var err error
	server := m.server[len(m.server)-1]
	if c.Usage, err = server.Usage(); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	c.Server = c.Usage.CPU
	if rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", server.PID)); err == nil {
		c.PSS = process.Figure(rollup, "Pss:") << 10
	}
	etcd := m.r.started.Etcd().Process
	if c.Etcd, err = etcd.CPU(); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	c.Client = process.Own()
	return c.readEtcd(m.r.started.EtcdURL())
}

// end returns the difference.
func (m *measuring) end() (Cost, error) {
	now := Cost{Wall: time.Since(m.began)}
	if err := m.read(&now); err != nil {
		return now, err
	}
	if len(m.server) == 1 {
		now.Server -= m.before.Server
	}
	now.Server += m.used
	now.Etcd -= m.before.Etcd
	now.Client -= m.before.Client
	now.Ranges -= m.before.Ranges
	now.Puts -= m.before.Puts
	now.Sent -= m.before.Sent
	return now, nil
}

// readEtcd reads etcd's metrics.
func (c *Cost) readEtcd(url string) error {
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	defer resp.Body.Close()
	figures := map[string]*float64{"etcd_mvcc_range_total": &c.Ranges, "etcd_mvcc_put_total": &c.Puts, "etcd_network_client_grpc_sent_bytes_total": &c.Sent}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if f := figures[name]; f != nil {
			*f, _ = strconv.ParseFloat(value, 64) // 0 is unknown
		}
	}
	_, _ = io.Copy(io.Discard, resp.Body) // so that the connection can be used again
	return lines.Err()
}
