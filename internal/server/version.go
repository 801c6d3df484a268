package server

import (
	"runtime"
	"runtime/debug"
	"strings"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/version"
)

// Version is the version of Kubernetes whose API this program serves: that of
// the module it was built with, unless the linker was told another.
func Version() apimachineryversion.Info {
	info := version.Get()
	info.GoVersion, info.Platform = runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH
	if !strings.HasPrefix(info.GitVersion, "v0.0.0") {
		return info
	}
	info.GitVersion = "v" + version.DefaultKubeBinaryVersion + ".0"
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, module := range build.Deps {
			if module.Path == "k8s.io/kubernetes" {
				info.GitVersion = module.Version
			}
		}
	}
	numbers := strings.SplitN(strings.TrimPrefix(info.GitVersion, "v"), ".", 3)
	info.Major, info.Minor = numbers[0], numbers[1]
	info.GitTreeState = "clean"
	return info
}
