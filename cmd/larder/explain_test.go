package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestErrorsNameTheirFlag checks that an error with a flag's value but not its name gets the name. Other errors stay
// as they are.
func TestErrorsNameTheirFlag(t *testing.T) {
	for _, c := range []struct{ args, err, want string }{
		{"--token-auth-file=x.csv", "auth: open x.csv: no such file", "--token-auth-file: auth: open x.csv: no such file"},
		{"--token-auth-file=x.csv", "auth: token-auth-file x.csv is empty", "auth: token-auth-file x.csv is empty"},
		{"--token-auth-file=x.csv", "--token-auth-file x.csv is empty", "--token-auth-file x.csv is empty"},
		{"--token-auth-file=data", "open data/etcd: no such file", "open data/etcd: no such file"},
		{"--token-auth-file=data", "the database is full", "the database is full"},
		{"--token-auth-file=/pki", "open /pki/x: no such file", "open /pki/x: no such file"},
		{"--tls-min-version=VersionTLS9", `unknown tls version "VersionTLS9"`, `--tls-min-version: unknown tls version "VersionTLS9"`},
		{"--tls-cipher-suites=A,FOO", "Cipher suite FOO not supported", "--tls-cipher-suites: Cipher suite FOO not supported"},
		{"--runtime-config=foo/v1=true", "unknown api groups foo/v1", "--runtime-config: unknown api groups foo/v1"},
		{"--runtime-config=foo/v1=true", "is it true that nothing works", "is it true that nothing works"},
		{"--secure-port=6443", "etcd at 127.0.0.1:6443 does not respond", "etcd at 127.0.0.1:6443 does not respond"},
		{"--etcd-cafile=ca.crt --client-ca-file=/x/ca.crt", "open /x/ca.crt: no such file", "--client-ca-file: open /x/ca.crt: no such file"},
	} {
		fs := upstreamFlags()
		if err := fs.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		err := errors.New(c.err)
		got := explain(err, fs)
		if got.Error() != c.want || !errors.Is(got, err) {
			t.Errorf("%s: %q is explained as %q, want %q", c.args, c.err, got, c.want)
		}
	}
	if explain(nil, pflag.NewFlagSet("", pflag.ContinueOnError)) != nil {
		t.Error("there is an error where there is none")
	}
}
