package server

import (
	"context"
	"net/http"
	"path"
	"runtime"
	"slices"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/server/statusz"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/logs"
	zpagesfeatures "k8s.io/component-base/zpages/features"
)

// debugHandlers answer what --profiling, --enable-logs-handler and the feature gates of
// status pages have kube-apiserver answer, but for /debug/pprof itself.
func (s *Server) debugHandlers() map[string]http.Handler {
	up, handlers := s.config.Upstream, make(map[string]http.Handler)
	if up.Features.EnableProfiling {
		if up.Features.EnableContentionProfiling {
			runtime.SetBlockProfileRate(1)
		}
		flags := mux.NewPathRecorderMux("larder")
		routes.DebugFlags{}.Install(flags, "v", setVerbosity())
		handlers["/debug/flags"], handlers["/debug/flags/"] = flags, flags
	}
	if up.EnableLogsHandler {
		handlers["/logs"], handlers["/logs/"] = http.RedirectHandler("/logs/", http.StatusMovedPermanently), http.HandlerFunc(serveLogs)
	}
	s.addStatusPages(handlers)
	return handlers
}

// handlerMap takes what upstream installs.
type handlerMap map[string]http.Handler

// Handle adds a path.
func (m handlerMap) Handle(path string, h http.Handler) { m[path] = h }

// addStatusPages adds /statusz and /flagz, which are upstream's.
func (s *Server) addStatusPages(handlers handlerMap) {
	const component = "apiserver"
	listed := []string{"/healthz", "/livez", "/metrics", "/readyz", "/version"}
	if utilfeature.DefaultFeatureGate.Enabled(zpagesfeatures.ComponentFlagz) && s.config.Upstream.Flagz != nil {
		listed = append(listed, flagz.DefaultFlagzPath)
		flagz.Install(handlers, component, s.config.Upstream.Flagz)
	}
	if utilfeature.DefaultFeatureGate.Enabled(zpagesfeatures.ComponentStatusz) {
		listed = append(listed, statusz.DefaultStatuszPath)
		slices.Sort(listed)
		statusz.Install(handlers, component, statusz.NewRegistry(builtVersion{s.config.Upstream.effective()}, statusz.WithListedPaths(listed)))
	}
}

// builtVersion tells the whole version of the build, of which upstream's libraries know
// no more than the minor one unless the linker says it.
type builtVersion struct {
	basecompatibility.EffectiveVersion
}

// BinaryVersion implements basecompatibility.EffectiveVersion.
func (v builtVersion) BinaryVersion() *utilversion.Version {
	if built, err := utilversion.ParseSemantic(Version().GitVersion); err == nil {
		return utilversion.MajorMinor(built.Major(), built.Minor()).WithPatch(built.Patch())
	}
	return v.EffectiveVersion.BinaryVersion()
}

// setVerbosity answers a PUT with another level of the log.
func setVerbosity() http.HandlerFunc { return routes.StringFlagPutHandler(logs.GlogSetter) }

// logsDir is where kube-apiserver looks for logs, those of other programs included.
const logsDir = "/var/log"

func serveLogs(w http.ResponseWriter, req *http.Request) {
	http.ServeFile(w, req, path.Join(logsDir, path.Clean("/"+strings.TrimPrefix(req.URL.Path, "/logs/"))))
}

// startDebugSocket lets who may open the socket profile, without credentials.
func (s *Server) startDebugSocket(ctx context.Context) {
	file := s.config.Upstream.Features.DebugSocketPath
	if file == "" {
		return
	}
	socket := routes.NewDebugSocket(file)
	socket.InstallProfiling()
	socket.InstallDebugFlag("v", setVerbosity())
	s.layers.Start(ctx, "debug socket", func(ctx context.Context) error {
		err := socket.RunWithContext(ctx)
		if ctx.Err() != nil {
			return ctx.Err() // the socket was closed, which Serve calls an error
		}
		return err
	})
}
