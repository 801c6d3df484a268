package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/capabilities"

	"github.com/larder-io/larder/cmd/larder/internal/server/datadir"
	"github.com/larder-io/larder/cmd/larder/internal/server/heap"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
)

// Run serves until ctx ends, then drains. It returns nil if no part has failed.
func (s *Server) Run(ctx context.Context) error {
	s.progress = &progress{out: cmp.Or[io.Writer](s.config.Progress, io.Discard), begun: time.Now()}
	err := s.start(ctx)
	if err == nil {
		err = s.await(ctx)
	} else if !s.config.Inherited.takesOver() { // otherwise the old process continues to serve
		s.config.Notify("STOPPING=1")
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil
	}
	if stopErr := s.stop(); err == nil {
		err = stopErr
	}
	if err == nil {
		s.progress.printf("stopped")
	}
	return err
}

// start starts every layer after the layers that it needs.
func (s *Server) start(ctx context.Context) error {
	settled := make(chan struct{})
	if s.config.SteerCollector {
		s.layers.Start(ctx, "collector", func(ctx context.Context) error { return heap.Govern(ctx, settled) })
	}
	// Read the files that Config names before opening the store. The store then opens while the other parts are built.
	for _, step := range []func(context.Context) error{s.prepare, s.buildAuth, s.buildEncryption, s.openStore, s.build} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if err := s.layers.Wait(ctx, s.awaitStore); err != nil {
		return err
	}
	s.startLayers(ctx)
	takesOver := s.config.Inherited.takesOver()
	if !takesOver {
		defer time.AfterFunc(quietStart, s.open).Stop()
	}
	if err := s.layers.Wait(ctx, s.awaitLoaded); err != nil {
		return err
	}
	if late := s.parts.registry.Unready(); takesOver && len(late) > 0 {
		return fmt.Errorf("server: stopped before it was loaded; the old process continues to serve: %v", late)
	}
	s.startClients(ctx)
	s.config.Notify("READY=1")
	if err := s.layers.Wait(ctx, s.awaitReady); err != nil {
		return err
	}
	s.open()
	if inherited := &s.config.Inherited; inherited.takesOver() {
		_, _ = inherited.Ready.Write([]byte{1}) // fails if the old process has ended
		inherited.Ready.Close()
	}
	if s.config.Beside != nil {
		s.layers.Start(ctx, "beside the server", s.config.Beside)
	}
	s.parts.transport.CloseIdleConnections() // concurrent requests of the start opened them
	close(settled)
	return nil
}

// quietStart limits how long clients wait while the caches load. The clients of a large cluster reconnect
// all at once. Their handshakes and early requests would take most of the CPU. The limit is shorter than
// the handshake timeout of clients (client-go: 10 s).
const quietStart = 8 * time.Second

// flowPatience limits how long clients wait until flow control knows its configuration, which it reads
// within a tenth of a second. Without the configuration nearly all reconnecting clients of a cluster would
// be rejected, and would retry a second later (N1).
const flowPatience = 3 * time.Second

// prepare opens the data directory and reads the configuration that needs no store.
func (s *Server) prepare(ctx context.Context) (err error) {
	// Only the first call in a process sets upstream's variable.
	capabilities.Setup(s.config.AllowPrivileged, s.config.MaxConnectionBytesPerSec)
	if is := capabilities.Get().AllowPrivileged; is != s.config.AllowPrivileged {
		return fmt.Errorf("server: --allow-privileged is %v in this process already", is)
	}
	if err := s.openDir(); err != nil {
		return err
	}
	if s.id, err = establish(&s.config, s.dir); err != nil {
		return err
	}
	if s.resources, err = s.config.resources(); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	if s.egress.EgressSelector, err = s.config.egressSelector(); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	s.startDebugSocket(ctx)
	return s.startTracing(ctx)
}

// openDir locks the data directory, or creates a temporary one.
func (s *Server) openDir() (err error) {
	switch {
	case s.config.DataDir != "":
		s.dir, err = datadir.Open(s.config.DataDir, s.config.Inherited.Lock)
	case s.config.Scratch:
		s.dir, err = datadir.Scratch()
	default:
		return nil
	}
	if err == nil {
		s.config.DataDir = s.dir.Path
	}
	return err
}

// openStore starts the store; awaitStore waits for it.
func (s *Server) openStore(ctx context.Context) (err error) {
	c, etcd := &s.config.Store, &s.config.Etcd.StorageConfig
	if s.config.external() {
		s.store, err = s.connect(etcd.Transport.ServerList)
	} else {
		spare, filesErr := embedded.ReservedFiles()
		if filesErr != nil {
			return fmt.Errorf("server: %w", filesErr)
		}
		s.config.MaxConnections = cmp.Or(s.config.MaxConnections, spare)
		s.store, err = embedded.New(embedded.Config{
			StoreConfig: s.config.storeConfig(s.metrics.Observer()), Dir: EtcdDir(s.config.DataDir), Fatal: s.config.Fatal, UnsafeNoFsync: c.UnsafeNoFsync,
			QuotaBytes: c.QuotaBytes, DefragmentInterval: c.DefragmentInterval,
		})
	}
	if err != nil {
		return err
	}
	s.layers.Start(ctx, "store", s.store.Run)
	return s.openOverrides(ctx)
}

// connect returns the store of an external etcd.
func (s *Server) connect(servers []string) (*kv.Etcd, error) {
	transport := &s.config.Etcd.StorageConfig.Transport
	return kv.NewExternal(kv.ExternalConfig{
		StoreConfig: s.config.storeConfig(s.metrics.Observer()), Endpoints: servers,
		CAFile: transport.TrustedCAFile, CertFile: transport.CertFile, KeyFile: transport.KeyFile,
		Dial: s.egress.tcpDialer(egressselector.Etcd), Stats: s.traces.storeStats(),
	})
}

func (c *Config) storeConfig(observer kv.Observer) kv.StoreConfig {
	etcd := &c.Etcd.StorageConfig
	return kv.StoreConfig{
		Prefix: etcd.Prefix, CompactionInterval: etcd.CompactionInterval, LeaseReuse: c.leaseReuse(), Logger: newLogger(), Observer: observer,
	}
}

// handlersLimit limits the wait for handlers after all responses have been sent or aborted. So a hanging plugin does
// not keep the process alive.
const handlersLimit = 10 * time.Second

// startLayers starts the layers that serve. Requests wait until the caches have loaded.
func (s *Server) startLayers(ctx context.Context) {
	s.serving = time.Now()
	s.layers.Start(ctx, "registry", s.parts.registry.Run)
	s.layers.Start(ctx, "extensions", s.parts.extensions.Run)
	if s.parts.flow != nil {
		s.layers.Start(ctx, "flow control", s.parts.flow.Run)
	}
	generic := s.config.GenericServerRunOptions
	s.layers.Start(ctx, "serving", s.parts.http.Run).Limit = generic.RequestTimeout + generic.ShutdownWatchTerminationGracePeriod + handlersLimit
	close(s.begun)
}

// bootstrapLimit limits the wait for the end of bootstrap. Upstream's loops use the store without a context. If the
// store does not respond, they end when it is closed.
const bootstrapLimit = 10 * time.Second

// startClients starts the layers that call this server's own API. The API must be served, because an informer
// waits a second after a failure. These layers end before the HTTP server.
func (s *Server) startClients(ctx context.Context) {
	p := &s.parts
	s.layers.Start(ctx, "informers", func(ctx context.Context) error {
		p.informers.Start(p.informersEnd)
		close(p.informersStarted)
		<-ctx.Done()
		close(p.informersEnd)
		p.informers.Shutdown()
		return nil
	})
	resources := p.registry.Resources()
	pods := slices.IndexFunc(resources, func(r *registry.Resource) bool { return r.GroupResource == core.Resource("pods") })
	s.layers.Start(ctx, "node authorizer", func(ctx context.Context) error { return p.auth.Follow(ctx, p.client, resources[pods]) })
	s.layers.Start(ctx, "CRD controllers", p.extensions.Follow)
	s.layers.Start(ctx, "aggregator", p.aggregator.Run)
	s.layers.Start(ctx, "bootstrap", p.bootstrap.Run).Limit = bootstrapLimit
	if p.peers != nil {
		s.layers.Start(ctx, "peers", p.peers.run)
	}
	if p.controllers != nil {
		s.layers.Start(ctx, "test controllers", p.controllers.Run)
	}
}

// awaitStore blocks until the store is open, and reports it.
func (s *Server) awaitStore(ctx context.Context) error {
	what := "etcd embedded in " + EtcdDir(s.config.DataDir)
	if s.config.external() {
		what = fmt.Sprintf("etcd at %s", s.config.Etcd.StorageConfig.Transport.ServerList)
	}
	revision, err := s.store.Revision(ctx)
	if err != nil {
		return fmt.Errorf("server: %s: %w", what, err)
	}
	s.progress.printf("store: %s, revision %d", what, revision)
	return s.awaitOverrides(ctx)
}

// awaitReady blocks until all checks of /readyz can pass. After the storage initialization timeout it no longer waits
// for some parts, for example parts that depend on unreadable objects.
func (s *Server) awaitReady(ctx context.Context) error {
	p := &s.parts
	<-p.informersStarted
	bounded, cancel := context.WithDeadline(ctx, s.serving.Add(s.config.GenericServerRunOptions.StorageInitializationTimeout))
	defer cancel()
	for kind, ok := range p.informers.WaitForCacheSync(bounded.Done()) {
		if err := s.progress.late(ctx, !ok, "the informer of %v has not synced yet", kind); err != nil {
			return err
		}
	}
	p.admission.Open()
	if err := s.progress.late(ctx, p.extensions.WaitSynced(bounded) != nil, "not all custom resources are known yet"); err != nil {
		return err
	}
	if err := s.progress.late(ctx, p.auth.WaitNodes(bounded) != nil, "the node authorizer has not seen all pods yet"); err != nil {
		return err
	}
	p.auth.SkipNodeSync()
	late := s.awaitControllers(bounded)
	if err := s.progress.late(ctx, late != nil, "%v", late); err != nil {
		return err
	}
	close(s.ready.synced)
	if err := s.progress.late(ctx, s.awaitFlow(bounded) != nil, "flow control has not read its configuration yet"); err != nil {
		return err
	}
	if !s.config.Inherited.takesOver() {
		s.open() // before the hooks, because hooks of servers that start together may call the other servers
	}
	if err := p.bootstrap.WaitReady(bounded); err != nil {
		for _, name := range p.bootstrap.AllowUnready() {
			s.progress.printf("late: %s has not finished yet", name)
		}
		if err := p.bootstrap.WaitReady(ctx); err != nil {
			return fmt.Errorf("server: %w", err)
		}
	}
	if p.peers != nil {
		if err := p.peers.await(ctx); err != nil {
			return err
		}
	}
	late = p.aggregator.WaitReady(bounded)
	if err := s.progress.late(ctx, late != nil, "%v", late); err != nil {
		return err
	}
	if late != nil {
		p.aggregator.AllowUnready()
	}
	s.progress.printf("serving: %s, ready after %v", s.id.url, s.progress.elapsed())
	if s.id.kubeconfig != "" {
		s.progress.printf("\n  export KUBECONFIG=%s\n", quote(s.id.kubeconfig))
		if s.dir.Temporary() {
			s.progress.printf("certificates and keys were generated for this run only; --data-dir keeps them\n")
		}
	}
	return nil
}

// awaitFlow blocks until flow control knows its configuration, or for flowPatience.
func (s *Server) awaitFlow(ctx context.Context) error {
	if s.parts.flow == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, flowPatience)
	defer cancel()
	return s.parts.flow.Await(ctx)
}

// awaitLoaded blocks until every cache has loaded, or registry.Config.LoadTimeout has passed.
func (s *Server) awaitLoaded(ctx context.Context) error {
	following, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer func() { stop(); beside.Wait() }()
	if !s.config.Inherited.takesOver() {
		beside.Go(func() { s.openIfStuck(following) })
	}
	if err := s.parts.registry.WaitReady(ctx); err != nil {
		return err
	}
	now := s.parts.registry.Progress()
	s.progress.printf("loaded: %d of %d resources", now.Ready, now.Resources)
	if late := s.parts.registry.Unready(); len(late) > 0 {
		s.progress.printf("late: not loaded yet, and served once they are: %v", late)
	}
	close(s.ready.loaded)
	return nil
}

// openIfStuck accepts connections if loading makes no progress, for example because a KMS plugin
// hangs. Probes can then see the state of the start. It returns when ctx ends.
func (s *Server) openIfStuck(ctx context.Context) {
	for last := s.parts.registry.Progress(); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second): // a ticker's next tick comes earlier if this process did not run
		}
		now := s.parts.registry.Progress()
		if now == last {
			s.open()
			return
		}
		last = now
	}
}

// await blocks until ctx ends, a layer fails, or another process has taken over. After the end of ctx it
// also waits for the shutdown delay. In that time /readyz fails and requests are still served, so that
// balancers choose other servers.
func (s *Server) await(ctx context.Context) error {
	for upgraded := false; ctx.Err() == nil; {
		select {
		case failed := <-s.layers.Ended():
			s.config.Notify("STOPPING=1")
			return failed.Unexpected()
		case <-s.config.Upgrade:
			err := s.layers.Wait(ctx, func(ctx context.Context) error { upgraded = s.upgrade(ctx); return nil })
			if upgraded {
				s.parts.bootstrap.HandOver()
				s.parts.http.HandOver()
				select { // until clients have had time to connect again, to the process that has taken over
				case <-ctx.Done():
				case <-time.After(max(handOverDelay, s.config.GenericServerRunOptions.ShutdownDelayDuration)):
				}
				return nil
			}
			if err != nil {
				s.config.Notify("STOPPING=1")
				return err
			}
		case <-ctx.Done():
		}
	}
	s.progress.printf("stopping: no longer ready, requests in flight finish")
	s.config.Notify("STOPPING=1")
	s.parts.http.FailReadiness()
	delay := time.After(s.config.GenericServerRunOptions.ShutdownDelayDuration)
	var withdrawing sync.WaitGroup
	withdrawing.Go(s.parts.bootstrap.Stop)
	defer withdrawing.Wait() // Stop calls this server's API
	select {
	case failed := <-s.layers.Ended():
		return failed.Unexpected()
	case <-delay:
		return nil
	}
}

// stop ends what start has started.
func (s *Server) stop() error {
	if s.parts.admission != nil { // after an aborted start, admission may still wait for informers
		s.parts.admission.Abandon()
	}
	if s.parts.stopWaiting != nil {
		s.parts.stopWaiting()
	}
	err := s.layers.Stop()
	if s.listener != nil {
		if closeErr := s.listener.Close(); !errors.Is(closeErr, net.ErrClosed) { // the HTTP server may have closed it
			err = errors.Join(err, closeErr)
		}
	}
	if s.dir != nil {
		err = errors.Join(err, s.dir.Close())
	}
	return err
}
