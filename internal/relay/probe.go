package relay

import (
	"context"
	"fmt"
	"time"
)

const (
	// probeTimeout is the timeout of a probe. The upstream sends a bookmark two seconds before the end.
	probeTimeout = 3 * time.Second
	// probeSlack is how much later than that the upstream may end the probe.
	probeSlack = 5 * time.Second
	// probePause follows a probe that proved nothing.
	probePause = time.Second
)

// probeResult says that highest is the last revision up to bookmark that has an event. It holds for a watch
// that has delivered the event.
type probeResult struct {
	bookmark, highest int64
}

// probes runs one probe after the other, each for all callers that asked before it begins.
func (w *watcher) probes(ctx context.Context, to chan<- *probeResult) {
	for {
		select {
		case <-w.probeRequested:
		case <-ctx.Done():
			return
		}
		p, err := w.probe(ctx)
		if err != nil {
			w.store.config.Logger.Debug("no progress was proven", "error", err)
			if sleep(ctx, probePause) != nil {
				return
			}
			continue
		}
		select {
		case to <- p:
		case <-ctx.Done():
			return
		}
	}
}

// probe follows a short watch until its first bookmark.
func (w *watcher) probe(ctx context.Context) (*probeResult, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout+probeSlack)
	defer cancel()
	after := w.position.Load()
	probe, err := w.store.openStream(ctx, after, probeTimeout)
	if err != nil {
		return nil, err
	}
	defer probe.close()
	p := &probeResult{highest: after}
	for {
		e, err := probe.read()
		switch {
		case err != nil:
			return nil, err
		case e.kind == 0 && e.revision >= p.highest:
			p.bookmark = e.revision
			return p, nil
		case e.kind == 0: // of a replica that lags behind
		case e.revision < p.highest:
			return nil, fmt.Errorf("%w: revision %d after %d", errMalformed, e.revision, p.highest)
		default:
			p.highest = e.revision
		}
	}
}

// useProbeResult advances the position if the watch has delivered all that the probe has seen. The probe began at
// a position of this watch and has seen all events up to its bookmark, so the watch can have no other.
func (w *watcher) useProbeResult() {
	if p := w.probed; p != nil && w.position.Load() >= p.highest {
		w.probed = nil
		w.advance(p.bookmark)
	}
}
