package server

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/internal/checkpoint"
	"github.com/larder-io/larder/kv"
)

// addCheckpoints adds the handlers that take checkpoints of all stores and go back to them,
// if the configuration enables them.
func (s *Server) addCheckpoints(handlers map[string]http.Handler) {
	if !s.config.Checkpoints {
		return
	}
	stores := []kv.Store{s.store}
	for _, a := range s.overrides {
		stores = append(stores, a.store)
	}
	checkpoints := checkpoint.New(checkpoint.Config{Stores: stores, Prefix: s.config.Store.Prefix, Await: s.awaitInformed})
	handlers[checkpoint.Path], handlers[checkpoint.Path+"/"] = checkpoints, checkpoints
}

// awaitInformed waits until the server's own informers, from which roles, webhooks and
// policies are read, have seen writes. An informer that begins anew, as it does when
// its watch was ended, takes a second or two.
func (s *Server) awaitInformed(ctx context.Context, writes []checkpoint.Write) error {
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ended := make(chan struct{})
	close(ended)
	for kind := range s.parts.informers.WaitForCacheSync(ended) { // all that were started
		object := reflect.New(kind.Elem()).Interface().(runtime.Object)
		latest := latestBelow(s.rootOf(object), writes)
		if latest == 0 {
			continue
		}
		informer := s.parts.informers.InformerFor(object, nil) // is there
		informed := func(context.Context) (bool, error) { return seen(informer, latest), nil }
		if err := wait.PollUntilContextCancel(ctx, time.Millisecond, true, informed); err != nil {
			return fmt.Errorf("the informer of %v has not seen revision %d: %w", kind, latest, err)
		}
	}
	return nil
}

// seen reports whether an informer has come as far as revision.
func seen(informer cache.SharedIndexInformer, revision int64) bool {
	last, err := strconv.ParseInt(informer.LastSyncResourceVersion(), 10, 64)
	return err == nil && last >= revision
}

// rootOf is where the keys of objects like one begin, "" where none are stored.
func (s *Server) rootOf(object runtime.Object) string {
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		return ""
	}
	for _, r := range s.parts.registry.Resources() {
		if r.Canonical().GroupKind() == kinds[0].GroupKind() {
			return r.Root()
		}
	}
	return ""
}

// latestBelow is the last revision of writes below root, 0 if there are none.
func latestBelow(root string, writes []checkpoint.Write) (latest int64) {
	for _, w := range writes {
		if root != "" && strings.HasPrefix(w.Key, root) {
			latest = max(latest, w.Revision)
		}
	}
	return latest
}
