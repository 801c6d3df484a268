package process

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestClocksAgree holds the process's clock against /proc, which rounds down twice.
func TestClocksAgree(t *testing.T) {
	before, ok := processClock(os.Getpid())
	if !ok {
		t.Skip("this system has no clocks of processes")
	}
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	after, _ := processClock(os.Getpid())
	ticks, err := cpuTime(stat)
	if err != nil {
		t.Fatal(err)
	}
	if ticks < before-3*clockTick || ticks > after+clockTick {
		t.Errorf("/proc says %v, the clock %v to %v", ticks, before, after)
	}
}

func TestStat(t *testing.T) {
	fields := strings.Repeat(" 0", 11)
	for _, c := range []struct {
		stat string
		want time.Duration
		ok   bool
	}{
		{"1 (a) b) (c)" + " R" + fields[:20] + " 150 50 0", 2 * time.Second, true},
		{"1 (a) R 0 0", 0, false},
		{"1 (a) R" + fields[:20] + " x 50 0", 0, false},
		{"", 0, false},
	} {
		got, err := cpuTime([]byte(c.stat))
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%q: %v, %v; want %v", c.stat, got, err, c.want)
		}
	}
	const status = "Name:\tx\nVmHWM:\t  20 kB\nVmRSS:\t  10 kB\nVmSwap:\n"
	for key, want := range map[string]int64{"VmHWM:": 20, "VmRSS:": 10, "VmSwap:": 0, "RssAnon:": 0, "Name:": 0} {
		if got := Figure([]byte(status), key); got != want {
			t.Errorf("%s %d, want %d", key, got, want)
		}
	}
}

func TestUsageOfThisProcess(t *testing.T) {
	p := Process{PID: os.Getpid()}
	before, err := p.Usage()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for after := before; after.CPU < before.CPU+20*time.Millisecond; {
		for i := range 1 << 20 {
			sum += i
		}
		if after, err = p.Usage(); err != nil {
			t.Fatal(err)
		}
		if after.CPU < before.CPU || after.Reads < before.Reads {
			t.Fatalf("usage went back from %+v to %+v", before, after)
		}
	}
	if _, err := (Process{PID: 1 << 30}).Usage(); err == nil {
		t.Error("want an error for a process that does not exist")
	}
	if usage, err := (Process{}).Usage(); err != nil || usage != (Usage{}) {
		t.Errorf("the zero Process reports %+v, %v; want nothing", usage, err)
	}
}
