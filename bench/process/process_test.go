package process

import (
	"os"
	"testing"
	"time"
)

// TestFiguresAreFoundByName checks that figures are found by name, and that missing ones are 0.
func TestFiguresAreFoundByName(t *testing.T) {
	const status = "Name:\tx\nVmHWM:\t  20 kB\nVmRSS:\t  10 kB\nVmSwap:\n"
	for key, want := range map[string]int64{"VmHWM:": 20, "VmRSS:": 10, "VmSwap:": 0, "RssAnon:": 0, "Name:": 0} {
		if got := Figure([]byte(status), key); got != want {
			t.Errorf("%s %d, want %d", key, got, want)
		}
	}
}

// TestUsageOfThisProcess checks that CPU time increases while this process computes.
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
			t.Fatalf("usage decreased from %+v to %+v", before, after)
		}
	}
	if _, err := (Process{PID: 1 << 30}).Usage(); err == nil {
		t.Error("want an error for a process that does not exist")
	}
	if usage, err := (Process{}).Usage(); err != nil || usage != (Usage{}) {
		t.Errorf("the zero Process reports %+v, error %v; want no usage", usage, err)
	}
}
