package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/larder-io/larder/cmd/larder/internal/server"
)

// addLoggingGates registers the feature gates of logging, as kube-apiserver's command does.
// They are global and can be registered only once.
func addLoggingGates() {
	gates := utilfeature.DefaultMutableFeatureGate
	if _, ok := gates.GetAll()[logsapi.ContextualLogging]; ok {
		return
	}
	if err := logsapi.AddFeatureGates(gates); err != nil {
		panic(err)
	}
}

// addRemoved adds flags that recent versions of kube-apiserver have removed and that manifests may still contain. They had
// no effect in the last versions that accepted them.
func (o *options) addRemoved(fs *pflag.FlagSet) {
	for _, name := range []string{"cloud-provider", "cloud-config", "cloud-provider-gce-l7lb-src-cidrs", "cloud-provider-gce-lb-src-cidrs", "master-service-namespace"} {
		fs.String(name, "", "Has no effect.")
		if err := fs.MarkDeprecated(name, "kube-apiserver has removed it, and it has no effect."); err != nil {
			panic(err)
		}
	}
}

func (o *options) addGlobal(fs *pflag.FlagSet) {
	fs.BoolP("help", "h", false, "Print this help.")
	fs.Var(&o.version, "version", "--version, --version=raw print the version and quit; --version=vX.Y.Z... sets the version that the server reports.")
	fs.Lookup("version").NoOptDefVal = "true"
}

// versionFlag is the flag value of --version, like that of component-base version/verflag.
type versionFlag struct{ requested string }

const versionRaw = "raw"

func (v *versionFlag) String() string {
	if v.requested == "" {
		return "false"
	}
	return v.requested
}

// Set accepts a boolean, "raw", or a version, which may differ from the build's only after the patch level.
func (v *versionFlag) Set(value string) error {
	switch {
	case value == versionRaw:
	case strings.HasPrefix(value, "v"):
		built := server.Version().GitVersion
		wanted, err := utilversion.ParseSemantic(value)
		if err != nil {
			return err
		}
		is, err := utilversion.ParseSemantic(built)
		if err != nil || wanted.Major() != is.Major() || wanted.Minor() != is.Minor() || wanted.Patch() != is.Patch() {
			return fmt.Errorf("version %q must match major/minor/patch of default version %q", value, built)
		}
	case value == "true" || value == "false":
	default:
		return fmt.Errorf("%q is neither a boolean, %q nor a version", value, versionRaw)
	}
	v.requested = value
	return nil
}

// print prints the version if --version was given, and reports whether it was.
func (v *versionFlag) print(w io.Writer) bool {
	switch v.requested {
	case versionRaw:
		fmt.Fprintf(w, "%#v\n", server.Version())
	case "true":
		fmt.Fprintf(w, "Kubernetes %s\n", server.Version().GitVersion)
	default:
		return false
	}
	return true
}

// Type implements pflag.Value.
func (v *versionFlag) Type() string { return "version" }
