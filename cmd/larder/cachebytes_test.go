package main

import (
	"maps"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestCacheBytesAreParsed(t *testing.T) {
	for _, c := range []struct {
		flags []string
		want  string // as the flag shows itself, or in an error
	}{
		{nil, "0"},
		{[]string{"1048576"}, "1048576"},
		{[]string{"-1"}, "-1"},
		{[]string{"1.5Gi"}, "1610612736"},
		{[]string{"2Gi,pods=512Mi,events.events.k8s.io=64M"}, "2147483648,events.events.k8s.io=64000000,pods=536870912"},
		{[]string{"pods=0"}, "0,pods=0"},
		{[]string{" 1Gi , pods=1Ki"}, "1073741824,pods=1024"},
		{[]string{"pods=1,1Gi"}, "1073741824,pods=1"},
		{[]string{"1Gi,pods=1", "pods=2,secrets=3"}, "1073741824,pods=2,secrets=3"},
		{[]string{"1Gi", "2Gi"}, "2147483648"},
		{[]string{""}, `"" is not a number of bytes`},
		{[]string{"many"}, `"many" is not a number of bytes`},
		{[]string{"pods="}, `"" is not a number of bytes`},
		{[]string{"100m"}, `"100m" is not a number of bytes`},
		{[]string{"100Ei"}, "9223372036854775807"},
		{[]string{"-2"}, `"-2" is not a number of bytes`},
		{[]string{"=5"}, `"=5" names no resource`},
		{[]string{"pods=1,pods=2"}, `"pods=2" names no resource, or one that already has a limit`},
		{[]string{"pods=-1"}, "must not be negative"},
		{[]string{"1,2"}, "only one limit"},
	} {
		var all int64
		var shares map[schema.GroupResource]int64
		flag := &cacheBytes{&all, &shares}
		var err error
		for _, value := range c.flags {
			if err == nil {
				err = flag.Set(value)
			}
		}
		got := flag.String()
		if err != nil {
			if got != "0" {
				t.Errorf("%q sets %s although it is wrong", c.flags, got)
			}
			got = err.Error()
		}
		if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
			t.Errorf("%q: %s, want %s", c.flags, got, c.want)
		}
	}
}

// FuzzCacheBytes checks that every accepted value has a meaning, and that its String parses to the same meaning.
func FuzzCacheBytes(f *testing.F) {
	for _, seed := range []string{"0", "-1", "1Gi,pods=5", "pods=1,events.events.k8s.io=2Mi", "a==1", ",", "1e3,x.=1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		var all, again int64
		var shares, sharesAgain map[schema.GroupResource]int64
		flag := &cacheBytes{&all, &shares}
		if flag.Set(value) != nil {
			return
		}
		if all < -1 {
			t.Fatalf("%q is %d bytes", value, all)
		}
		for gr, bytes := range shares {
			if gr.Resource == "" || bytes < 0 {
				t.Fatalf("%q gives %q %d bytes", value, gr, bytes)
			}
		}
		if err := (&cacheBytes{&again, &sharesAgain}).Set(flag.String()); err != nil || again != all || !maps.Equal(shares, sharesAgain) {
			t.Fatalf("%q shows itself as %q: %v", value, flag, err)
		}
	})
}
