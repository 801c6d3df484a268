package server

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/version"
)

// Version returns the version of Kubernetes whose API this program serves. It is the version of the module that was
// built in, unless linker flags set another.
func Version() apimachineryversion.Info {
	info := version.Get()
	info.GoVersion, info.Compiler, info.Platform = runtime.Version(), runtime.Compiler, runtime.GOOS+"/"+runtime.GOARCH
	if strings.HasPrefix(info.GitVersion, "v0.0.0") {
		info.GitVersion, info.GitCommit = "v"+version.DefaultKubeBinaryVersion+".0", "unknown"
		if build, ok := debug.ReadBuildInfo(); ok {
			fromBuild(&info, build)
		}
		info.GitTreeState = "clean"
	}
	numbers := strings.SplitN(strings.TrimPrefix(info.GitVersion, "v"), ".", 3)
	info.Major, info.Minor = numbers[0], numbers[1]
	info.EmulationMajor, info.EmulationMinor = info.Major, info.Minor
	// One minor version back, as in apiserver pkg/util/compatibility.
	if minor, err := strconv.Atoi(info.Minor); err == nil {
		info.MinCompatibilityMajor, info.MinCompatibilityMinor = info.Major, strconv.Itoa(minor-1)
	}
	return info
}

// kubeAPIServerUserAgent returns the user agent of kube-apiserver's own clients: client-go
// rest/config.go, DefaultKubernetesUserAgent, which knows the version by linker flags alone.
func kubeAPIServerUserAgent() string {
	info := Version()
	release, _, _ := strings.Cut(info.GitVersion, "-")
	commit := info.GitCommit[:min(7, len(info.GitCommit))]
	return fmt.Sprintf("kube-apiserver/%s (%s) kubernetes/%s", release, info.Platform, commit)
}

func fromBuild(info *apimachineryversion.Info, build *debug.BuildInfo) {
	for _, module := range build.Deps {
		if module.Path == "k8s.io/kubernetes" {
			info.GitVersion = module.Version
		}
	}
	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			info.GitCommit = setting.Value
		case "vcs.time":
			info.BuildDate = setting.Value
		}
	}
}
