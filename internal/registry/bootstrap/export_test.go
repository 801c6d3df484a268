package bootstrap

// Ready is closed once the hook's objects exist.
func (h *Hook) Ready() <-chan struct{} { return h.ready }
