package main

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestManualHasEveryFlag checks that the manual page has every flag and command, and that groff reports no error.
func TestManualHasEveryFlag(t *testing.T) {
	root := newRoot()
	root.InitDefaultCompletionCmd()
	page := manual(root)
	serve, _, err := root.Find([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	serve.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "help" && !regexp.MustCompile(`(?m)^ .*`+regexp.QuoteMeta(roff("--"+f.Name))+`( |$)`).MatchString(page) {
			t.Errorf("no --%s", f.Name)
		}
	})
	for _, command := range []string{".SH LARDER SERVE\n", ".SH LARDER DEV\n", ".SH LARDER VERSION\n", ".SH LARDER COMPLETION BASH\n"} {
		if !strings.Contains(page, command) {
			t.Errorf("no %q", command)
		}
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Log("no groff here to read the page")
		return
	}
	cmd := exec.Command(groff, "-man", "-Tutf8", "-ww", "-Wbreak", "-z")
	cmd.Stdin = strings.NewReader(page)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("groff: %v\n%.2000s", err, out)
	}
}
