package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime"
	"slices"
	"time"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/server/statusz"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/logs"
	zpagesfeatures "k8s.io/component-base/zpages/features"
	"k8s.io/klog/v2"
	kubernetesroutes "k8s.io/kubernetes/pkg/routes"

	"github.com/larder-io/larder/httpapi/negotiate"
)

// debugHandlers returns handlers for the paths that --profiling, --enable-logs-handler and the
// feature gates of status pages enable in kube-apiserver, except /debug/pprof itself.
func (s *Server) debugHandlers() map[string]http.Handler {
	handlers := make(map[string]http.Handler)
	if f := s.config.Features; f.EnableContentionProfiling && (f.EnableProfiling || f.DebugSocketPath != "") {
		runtime.SetBlockProfileRate(1)
	}
	if s.config.Features.EnableProfiling {
		flags := mux.NewPathRecorderMux("larder")
		routes.DebugFlags{}.Install(flags, "v", setVerbosity())
		handlers["/debug/flags"], handlers["/debug/flags/"] = flags, flags
	}
	if s.config.EnableLogsHandler {
		files := negotiate.Routed(kubernetesroutes.Logs{}.Install)
		handlers["/logs"], handlers["/logs/"] = files, files
	}
	s.config.addStatusPages(handlers)
	return handlers
}

// handlerMap is a mux in which upstream's functions install handlers.
type handlerMap map[string]http.Handler

// Handle adds a path.
func (m handlerMap) Handle(path string, h http.Handler) { m[path] = h }

// addStatusPages adds upstream's /statusz and /flagz.
func (c *Config) addStatusPages(handlers handlerMap) {
	const component = "apiserver"
	listed := []string{"/healthz", "/livez", "/metrics", "/readyz", "/version"}
	if utilfeature.DefaultFeatureGate.Enabled(zpagesfeatures.ComponentFlagz) && c.Flagz != nil {
		listed = append(listed, flagz.DefaultFlagzPath)
		flagz.Install(handlers, component, c.Flagz)
	}
	if utilfeature.DefaultFeatureGate.Enabled(zpagesfeatures.ComponentStatusz) {
		listed = append(listed, statusz.DefaultStatuszPath)
		slices.Sort(listed)
		statusz.Install(handlers, component, statusz.NewRegistry(builtVersion{c.effectiveVersion()}, statusz.WithListedPaths(listed)))
	}
}

// builtVersion adds the build's patch version. Upstream's libraries know only the minor version unless linker flags
// set the rest.
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

// setVerbosity returns a handler of PUT that sets the log's verbosity.
func setVerbosity() http.HandlerFunc { return routes.StringFlagPutHandler(logs.GlogSetter) }

// startDebugSocket serves profiles at --debug-socket-path without authentication.
func (s *Server) startDebugSocket(ctx context.Context) {
	file := s.config.Features.DebugSocketPath
	if file == "" {
		return
	}
	handler := mux.NewPathRecorderMux("debug socket")
	routes.Profiling{}.Install(handler)
	handler.UnlistedHandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	routes.DebugFlags{}.Install(handler, "v", setVerbosity())
	before := os.Getppid()
	s.layers.Start(ctx, "debug socket", func(ctx context.Context) error {
		// After an upgrade in place, wait for the end of the old process, which removes the file.
		for s.config.Inherited.takesOver() && os.Getppid() == before {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Second):
			}
		}
		err := serveSocket(ctx, file, handler)
		if ctx.Err() == nil { // otherwise the error only says that the socket was closed
			klog.ErrorS(err, "Not serving the debug socket", "path", file)
			<-ctx.Done()
		}
		return ctx.Err()
	})
}

// serveSocket serves HTTP at a unix socket until ctx ends. Only this user can connect, whatever the umask is.
func serveSocket(ctx context.Context, file string, handler http.Handler) error {
	if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
		return err
	}
	l, err := net.Listen("unix", file)
	if err != nil {
		return err
	}
	if err := os.Chmod(file, 0o600); err != nil {
		return errors.Join(err, l.Close())
	}
	server := &http.Server{Handler: handler}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	return server.Serve(l)
}
