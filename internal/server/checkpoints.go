package server

import (
	"net/http"

	"github.com/larder-io/larder/internal/checkpoint"
	"github.com/larder-io/larder/kv"
)

// addCheckpoints has handlers take checkpoints of all stores and go back to them, if the
// configuration lets them.
func (s *Server) addCheckpoints(handlers map[string]http.Handler) {
	if !s.config.Checkpoints {
		return
	}
	stores := []kv.Store{s.store}
	for _, a := range s.apart {
		stores = append(stores, a.store)
	}
	checkpoints := checkpoint.New(checkpoint.Config{Stores: stores, Prefix: s.config.Store.Prefix})
	handlers[checkpoint.Path], handlers[checkpoint.Path+"/"] = checkpoints, checkpoints
}
