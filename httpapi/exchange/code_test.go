package exchange

import (
	"bytes"
	"errors"
	"flag"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// TestCodesHaveThreeDigits checks that a response has a code of three digits. HTTP/1.1 clients reject others, and in a
// header block of HTTP/2 they would end the connection.
func TestCodesHaveThreeDigits(t *testing.T) {
	for code, want := range map[int]int{-1: 500, 0: 500, 99: 500, 100: 100, 418: 418, 999: 999, 1000: 500, 99999: 500} {
		var r Response
		if r.Head(code, ""); r.StatusCode() != want {
			t.Errorf("code %d is sent as %d, want %d", code, r.StatusCode(), want)
		}
	}
}

// TestFailedEncodingsAreLogged checks that an error of an encoder is logged as in kube-apiserver.
func TestFailedEncodingsAreLogged(t *testing.T) {
	defer klog.CaptureState().Restore()
	var logged bytes.Buffer
	flags := flag.NewFlagSet("", flag.PanicOnError)
	klog.InitFlags(flags)
	for name, value := range map[string]string{"logtostderr": "false", "one_output": "true", "stderrthreshold": "FATAL"} {
		if err := flags.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	klog.SetOutput(&logged)
	x := new(Exchange)
	if err := x.Parse("GET", "/?pretty=false"); err != nil {
		t.Fatal(err)
	}
	x.FailEncoding(errors.New("yaml: control characters are not allowed"), "application/yaml")
	klog.Flush()
	if want := "apiserver was unable to write a JSON response: yaml: control characters are not allowed"; x.StatusCode() != 500 || strings.Count(logged.String(), want) != 1 {
		t.Errorf("status %d, log %q, want 500 and %q", x.StatusCode(), logged.String(), want)
	}
}
