package server

import (
	"context"
	"fmt"
)

// Server is a Larder process. Its methods are not to be called concurrently.
type Server struct {
	config   Config
	progress *progress
}

// New checks config and returns a Server that is not running.
func New(config Config) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return &Server{config: config, progress: newProgress(config.Progress, config.Terminal)}, nil
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	return fmt.Errorf("server: not yet")
}
