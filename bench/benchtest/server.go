// Package benchtest is a small API server for tests of workloads. It serves HTTP over TLS, keeps objects in memory and
// sends changes to watches. It has no old revisions and validates nothing.
//
// Any goroutine may send requests to a Server. Its locks are leaves.
package benchtest

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/client-go/kubernetes/scheme"
)

// object is anything in JSON.
type object = map[string]any

// Server implements the part of the API that workloads use.
type Server struct {
	*httptest.Server

	// Drop reports whether to drop an event; nil means none. Set it before the first request.
	Drop func(event int) bool
	// BreaksOff is a path whose response is truncated; "" means none. Set it before the first request.
	BreaksOff string

	mu       sync.Mutex
	objects  map[string]json.RawMessage // by path
	revision int
	events   int
	watches  map[*watch]struct{}
	requests map[string]int // by method
}

type watch struct {
	covers func(path string, o json.RawMessage) bool
	events chan []byte
}

// New returns a server with an administrator's token and no objects. The caller starts and closes it.
func New() *Server {
	s := &Server{objects: make(map[string]json.RawMessage), watches: make(map[*watch]struct{}), requests: make(map[string]int), revision: 1}
	s.Server = httptest.NewUnstartedServer(s)
	s.EnableHTTP2 = true
	return s
}

// Requests counts the requests of a method.
func (s *Server) Requests(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[method]
}

// Objects lists the paths of all objects.
func (s *Server) Objects() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.objects))
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests[r.Method]++
	s.mu.Unlock()
	path := strings.TrimSuffix(r.URL.Path, "/status")
	switch {
	case path == s.BreaksOff && path != "":
		w.Header().Set("Content-Length", "1000")
		io.WriteString(w, "{")
	case path == "/readyz":
		io.WriteString(w, "ok")
	case path == "/version":
		respond(w, http.StatusOK, object{"gitVersion": "v0.0.0-test"})
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") == "true":
		s.watch(w, r)
	case r.Method == http.MethodGet:
		s.get(w, r)
	case r.Method == http.MethodDelete:
		s.remove(w, path)
	default:
		s.write(w, r, path)
	}
}

func respond(w http.ResponseWriter, code int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // cannot happen for maps and strings
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	w.Write(text)
}

func reject(w http.ResponseWriter, code int, reason string) {
	respond(w, code, object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code})
}

// get returns an object, or a collection if the path names no object.
func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.objects[r.URL.Path]; ok {
		respond(w, http.StatusOK, o)
		return
	}
	if _, rest, found := strings.Cut(r.URL.Path, "/namespaces/"); found && strings.Count(rest, "/") == 2 {
		reject(w, http.StatusNotFound, "NotFound")
		return
	}
	items := []json.RawMessage{}
	covers := selection(r)
	for _, path := range slices.Sorted(maps.Keys(s.objects)) {
		if covers(path, s.objects[path]) {
			items = append(items, s.objects[path])
		}
	}
	respond(w, http.StatusOK, object{"kind": "List", "apiVersion": "v1", "metadata": object{"resourceVersion": fmt.Sprint(s.revision)}, "items": items})
}

// selection returns a function that reports whether a request for a collection selects an object.
func selection(r *http.Request) func(path string, o json.RawMessage) bool {
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	within := ""
	if _, rest, found := strings.Cut(r.URL.Path, "/namespaces/"); found {
		within = strings.TrimSuffix(rest, resource)
	}
	node, byNode := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "spec.nodeName=") // ignores other selectors
	shard := strings.Split(r.URL.Query().Get("shardSelector"), "'")                         // uses hashes of paths, because objects have no UIDs
	return func(path string, o json.RawMessage) bool {
		if !strings.Contains(path, "/"+resource+"/") || !strings.Contains(path, "/namespaces/"+within) {
			return false
		}
		if hash := "0x" + sharding.HashField(path); len(shard) > 3 && (sharding.HexLess(hash, shard[1]) || !sharding.HexLess(hash, shard[3])) {
			return false
		}
		var pod struct{ Spec struct{ NodeName string } }
		return !byNode || json.Unmarshal(o, &pod) == nil && pod.Spec.NodeName == node
	}
}

func (s *Server) write(w http.ResponseWriter, r *http.Request, path string) {
	sent, err := decode(r.Body)
	var named metav1.PartialObjectMetadata
	if err := errors.Join(err, json.Unmarshal(sent, &named)); err != nil {
		reject(w, http.StatusBadRequest, err.Error())
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := "MODIFIED"
	if r.Method == http.MethodPost {
		path, kind = path+"/"+named.Name, "ADDED"
	}
	before, exists := s.objects[path]
	switch {
	case r.Method == http.MethodPost && exists:
		reject(w, http.StatusConflict, "AlreadyExists")
		return
	case r.Method != http.MethodPost && !exists:
		reject(w, http.StatusNotFound, "NotFound")
		return
	case r.Method == http.MethodPatch:
		sent = merge(before, sent)
	}
	s.revision++
	s.objects[path] = merge(sent, fmt.Appendf(nil, `{"metadata":{"resourceVersion":"%d"}}`, s.revision))
	s.notifyLocked(kind, path)
	respond(w, http.StatusOK, s.objects[path])
}

// decode returns an object as JSON.
func decode(body io.Reader) ([]byte, error) {
	sent, err := io.ReadAll(body)
	if err != nil || len(sent) > 0 && sent[0] == '{' {
		return sent, err
	}
	typed, _, err := scheme.Codecs.UniversalDeserializer().Decode(sent, nil, nil)
	if err != nil {
		return nil, err
	}
	return json.Marshal(typed)
}

func merge(object, patch []byte) []byte {
	merged, err := jsonpatch.MergePatch(object, patch)
	if err != nil {
		panic(err) // cannot happen for JSON objects
	}
	return merged
}

func (s *Server) remove(w http.ResponseWriter, path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, exists := s.objects[path]; !exists {
		reject(w, http.StatusNotFound, "NotFound")
		return
	}
	s.revision++
	s.notifyLocked("DELETED", path)
	delete(s.objects, path)
	respond(w, http.StatusOK, object{"kind": "Status", "status": "Success"})
}

func (s *Server) notifyLocked(kind, path string) {
	s.events++
	if s.Drop != nil && s.Drop(s.events) {
		return
	}
	event := eventOf(kind, s.objects[path])
	for w := range s.watches {
		if w.covers(path, s.objects[path]) {
			w.events <- event
		}
	}
}

func eventOf(kind string, o json.RawMessage) []byte {
	return fmt.Appendf(nil, `{"type":%q,"object":%s}`+"\n", kind, o)
}

// watch serves one watch until its client disconnects.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	const buffer = 10000 // more events than any test has
	own := &watch{covers: selection(r), events: make(chan []byte, buffer)}
	binary := strings.HasPrefix(r.Header.Get("Accept"), "application/vnd.kubernetes.protobuf") && !strings.Contains(r.Header.Get("Accept"), ",")
	w.Header().Set("Content-Type", "application/json")
	s.mu.Lock()
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for _, path := range slices.Sorted(maps.Keys(s.objects)) {
			if own.covers(path, s.objects[path]) {
				own.events <- eventOf("ADDED", s.objects[path])
			}
		}
		own.events <- eventOf("BOOKMARK", fmt.Appendf(nil, `{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"%d","annotations":{"k8s.io/initial-events-end":"true"}}}`, s.revision))
	}
	s.watches[own] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watches, own)
		s.mu.Unlock()
	}()
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case event := <-own.events:
			if err := send(w, event, binary); err != nil {
				return
			}
		}
	}
}

// send writes an event in two pieces, as servers may.
func send(w http.ResponseWriter, event []byte, framed bool) error {
	var prefix []byte
	if framed {
		prefix = binary.BigEndian.AppendUint32(nil, uint32(len(event)))
	}
	for _, piece := range [][]byte{prefix, event} {
		if _, err := w.Write(piece); err != nil {
			return err
		}
		w.(http.Flusher).Flush()
	}
	return nil
}
