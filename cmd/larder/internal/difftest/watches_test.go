package difftest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// watches is the cross product of the parameters that decide how a WATCH begins.
func watches() []request {
	var all []request
	for _, scope := range []string{"/api/v1/namespaces/diff/configmaps", "/api/v1/pods", "/api/v1/nodes", "/api/v1/namespaces/diff/events"} {
		for _, version := range []string{"", "0", "1", "{then}", "{mid}", "{now}", "99999999", "x"} {
			for _, initial := range []string{"", "true", "false"} {
				for _, match := range []string{"", "NotOlderThan", "Exact"} {
					for _, bookmarks := range []string{"", "true"} {
						for _, selector := range []string{"", "labelSelector=x%3D1", "fieldSelector=metadata.name%3Db"} {
							all = append(all, get(scope+query("watch", "1", "timeoutSeconds", "{life}", "resourceVersion", version,
								"sendInitialEvents", initial, "resourceVersionMatch", match, "allowWatchBookmarks", bookmarks)+and(selector), js))
						}
					}
				}
			}
		}
	}
	return append(append(all, watchForms()...), deprecatedWatches()...)
}

// watchForms are watches in every media type, of many kinds of resources, and with invalid parameters.
func watchForms() []request {
	var all []request
	for _, path := range []string{
		"/api/v1/namespaces/diff/configmaps", "/api/v1/namespaces/diff/pods", "/api/v1/nodes", "/apis/apps/v1/namespaces/diff/deployments", "/apis/autoscaling/v1/namespaces/diff/horizontalpodautoscalers",
		"/apis/autoscaling/v2/horizontalpodautoscalers", "/api/v1/namespaces/diff/events", "/apis/events.k8s.io/v1/namespaces/diff/events", "/api/v1/namespaces/diff/services", "/apis/rbac.authorization.k8s.io/v1/roles", "/api/v1/namespaces/empty/secrets",
	} {
		path += "?timeoutSeconds={life}&"
		for _, accept := range accepts {
			all = append(all, get(path+"watch=1&allowWatchBookmarks=true", accept), get(path+"watch=1&resourceVersion=x", accept))
		}
		for _, include := range []string{"None", "Object", "Bad"} {
			all = append(all, get(path+"watch=1&allowWatchBookmarks=true&includeObject="+include, table))
		}
		for _, p := range []string{
			"watch=true&limit=1", "watch", "watch=", "watch=yes", "watch=1&continue=x", "watch=1&labelSelector=%3D%3D", "watch=1&fieldSelector=foo%3D1", "watch=1&fieldSelector=metadata.name%3Da/b",
			"watch=1&resourceVersion=1", "watch=1&resourceVersion=-1", "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=99999999", "watch=1&pretty=true", "watch=1&dryRun=All",
			"watch=1&timeout=1ms", "watch=1&timeout=x", "watch=1&export=true", "watch=1&sendInitialEvents=x",
		} {
			all = append(all, get(path+p, js))
		}
		all = append(all, request{Method: http.MethodGet, Path: path + "watch=1", User: "alice"}, request{Method: http.MethodGet, Path: path + "watch=1", User: "-"},
			request{Method: http.MethodGet, Path: path + "watch=1", Encoding: "gzip"}, request{Method: http.MethodGet, Path: path + "watch=1", Agent: "curl/8"},
			get(strings.Replace(path, "{life}", "x", 1)+"watch=1", js))
	}
	return all
}

// deprecatedWatches are watches with deprecated paths, which contain /watch/.
func deprecatedWatches() []request {
	var all []request
	for _, path := range []string{
		"/api/v1/watch/namespaces/diff/configmaps", "/api/v1/watch/namespaces/diff/configmaps/a", "/api/v1/watch/namespaces/diff/configmaps/nosuch", "/api/v1/watch/configmaps", "/api/v1/watch/namespaces", "/api/v1/watch/namespaces/diff",
		"/api/v1/watch/nodes/n1", "/apis/apps/v1/watch/namespaces/diff/deployments", "/apis/apps/v1/watch/deployments", "/apis/autoscaling/v1/watch/namespaces/diff/horizontalpodautoscalers/h", "/api/v1/watch/namespaces/diff/events", "/api/v1/watch/namespaces/diff/nosuch",
	} {
		path += "?timeoutSeconds={life}"
		for _, p := range []string{
			"", "&resourceVersion=0", "&resourceVersion={mid}", "&resourceVersion=1", "&resourceVersion=x", "&watch=1", "&watch=0", "&allowWatchBookmarks=true", "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
			"&resourceVersion=0&resourceVersionMatch=NotOlderThan", "&resourceVersionMatch=NotOlderThan", "&labelSelector=x%3D1", "&fieldSelector=metadata.name%3Da", "&fieldSelector=metadata.name%3Db", "&limit=1", "&continue=x",
		} {
			all = append(all, get(path+p, js))
		}
		all = append(all, get(path, pb), get(path, table), get(path, yaml), get(path, partial), request{Method: http.MethodGet, Path: path, User: "alice"})
	}
	return all
}

// compareLiveWatches opens watches at both servers, changes objects through each server, and compares the events.
func (c *comparison) compareLiveWatches() {
	c.t.Helper()
	version := revision(c.t, c.f.must(c.t, c.f.larder, get("/api/v1/namespaces/diff/configmaps", js)).body)
	var all []request
	for _, accept := range []string{js, pb, table, partial, pb + ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io"} {
		for _, selector := range []string{"", "&labelSelector=live%3Dyes", "&labelSelector=live!%3Dyes", "&fieldSelector=metadata.name%3Dlive"} {
			for _, path := range []string{"/api/v1/namespaces/diff/configmaps", "/api/v1/configmaps"} {
				if accept == table && selector+path != "/api/v1/configmaps" {
					continue // kube-apiserver repeats the columns for each watcher that shares a frame
				}
				all = append(all, get(path+"?watch=1&timeoutSeconds=50&resourceVersion="+version+selector, accept))
			}
		}
	}
	c.compareStreams(all, version)
}

// compareStreams opens watches from a version, changes objects, and compares the streams.
func (c *comparison) compareStreams(all []request, version string) {
	c.t.Helper()
	if all = selected(all); len(all) == 0 {
		return
	}
	streams := make([][2]*stream, len(all))
	for i, r := range all {
		streams[i] = [2]*stream{c.open(c.f.stock, r), c.open(c.f.larder, r)}
	}
	last := c.changeLive()
	for i, r := range all {
		stock, larder := streams[i][0].until(last), streams[i][1].until(last)
		c.reportDifference("live "+strings.ReplaceAll(r.String(), version, "N"), compare(response{body: withoutAges(stock)}, response{body: withoutAges(larder)}))
	}
	c.t.Logf("live watches: %d", len(all))
}

// changeLive makes changes in which objects begin and cease to match selectors. It returns the revision of the last
// change, which every watch receives.
func (c *comparison) changeLive() string {
	c.t.Helper()
	const path = "/api/v1/namespaces/diff/configmaps"
	create := func(name, labels string) request {
		return request{Method: http.MethodPost, Path: path, Type: js, Body: fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"labels":{%s}}}`, name, labels)}
	}
	patch := func(name, body string) request {
		return request{Method: http.MethodPatch, Path: path + "/" + name, Type: "application/merge-patch+json", Body: body}
	}
	label := func(name, value string) request {
		return patch(name, fmt.Sprintf(`{"metadata":{"labels":{"live":%q}}}`, value))
	}
	remove := func(name string) request { return request{Method: http.MethodDelete, Path: path + "/" + name} }
	var last response
	for i, r := range []request{
		create("live", `"live":"no"`), create("live2", `"live":"yes"`), label("live", "yes"), patch("live", `{"data":{"a":"<1>"}}`), label("live2", "no"), label("live", "no"),
		patch("live", `{"data":{"a":"2"}}`), remove("live2"), label("live", "yes"), remove("live"), create("live", `"live":"yes"`), label("live", "no"), remove("live"),
		create("live", `"live":"yes"`), label("live", "no"),
	} {
		last = c.f.must(c.t, []*process{c.f.stock, c.f.larder}[i%2], r)
	}
	return revision(c.t, last.body)
}

// stream is an open watch and what it has received.
type stream struct {
	body    io.ReadCloser
	isProto bool

	mu   sync.Mutex
	more sync.Cond
	got  []byte
	over bool
}

func (c *comparison) open(p *process, r request) *stream {
	c.t.Helper()
	resp, err := p.open(r)
	if err != nil {
		c.t.Fatalf("%s: %s: %v", p.name, r, err)
	}
	s := &stream{body: resp.Body, isProto: strings.Contains(resp.Header.Get("Content-Type"), "protobuf")}
	s.more.L = &s.mu
	go s.read()
	return s
}

func (s *stream) read() {
	buffer := make([]byte, 64<<10)
	for {
		n, err := s.body.Read(buffer)
		s.mu.Lock()
		s.got = append(s.got, buffer[:n]...)
		s.over = err != nil
		s.more.Broadcast()
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// until returns the stream up to the event with revision last, or all of it if it ended before.
func (s *stream) until(last string) []byte {
	mark, split := []byte(`"resourceVersion":"`+last+`"`), splitLines
	if s.isProto {
		mark, split = append([]byte{6<<3 | 2, byte(len(last))}, last...), splitFrames
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.over && !wholly(split(s.got), mark) {
		s.more.Wait()
	}
	got := s.got
	s.body.Close()
	for !s.over {
		s.more.Wait()
	}
	return got
}

// wholly reports whether mark is in a complete frame. If the stream ends with a complete frame, an empty frame follows.
func wholly(frames [][]byte, mark []byte) bool {
	if len(frames) < 2 || len(frames[len(frames)-1]) > 0 {
		return false
	}
	return bytes.Contains(frames[len(frames)-2], mark)
}
