package main

import (
	"testing"

	"github.com/spf13/pflag"

	"github.com/larder-io/larder/cmd/larder/internal/server"
)

// TestRevocationIsOnUnlessDisabled checks the default of --revoke-watches.
func TestRevocationIsOnUnlessDisabled(t *testing.T) {
	for _, c := range []struct {
		args []string
		want bool
	}{
		{nil, true},
		{[]string{"--revoke-watches"}, true},
		{[]string{"--revoke-watches=false"}, false},
	} {
		o, fs := newOptions(server.Default()), pflag.NewFlagSet("serve", pflag.ContinueOnError)
		o.addTo(fs)
		if err := fs.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		if got := o.complete(fs.Changed).RevokeWatches; got != c.want {
			t.Errorf("%q: watches are revoked: %v", c.args, got)
		}
	}
}
