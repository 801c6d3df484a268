package server

import (
	"context"
	"net/http"
	"path"
	"runtime"
	"strings"

	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/component-base/logs"
)

// debugHandlers answer what --profiling and --enable-logs-handler have kube-apiserver
// answer, but for /debug/pprof itself.
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
	return handlers
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
	s.layers.start(ctx, "debug socket", func(ctx context.Context) error {
		err := socket.RunWithContext(ctx)
		if ctx.Err() != nil {
			return ctx.Err() // the socket was closed, which Serve calls an error
		}
		return err
	})
}
