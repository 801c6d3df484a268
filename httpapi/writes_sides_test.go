package httpapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	protobufcodec "k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/httpapi/patches"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

const (
	// maxSentBody limits the bodies of requests on both sides of a comparison of writes, and maxStoredObject the
	// objects in their stores.
	maxSentBody, maxStoredObject = 64 << 10, 16 << 10

	// writesPolicy records each user's requests at its own level.
	writesPolicy = `
omitStages: [RequestReceived]
rules:
- {level: Metadata, users: [meta]}
- {level: Request, users: [reader]}
- {level: RequestResponse, users: [lean], omitManagedFields: true}
- {level: RequestResponse}
`
)

// writesRights are the rights of the users in a comparison of writes.
type writesRights struct{ auditors }

// Authorize implements authorizer.Authorizer.
func (r writesRights) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() == "create" {
		switch a.GetUser().GetName() {
		case "updater":
			return authorizer.DecisionNoOpinion, "updates alone", nil
		case "lucky": // as with a role that does not exist
			return authorizer.DecisionAllow, "because", errors.New("a rule is missing")
		case "unlucky":
			return authorizer.DecisionNoOpinion, "", errors.New("a rule is missing")
		}
	}
	return r.auditors.Authorize(ctx, a)
}

// boundedStore refuses values that are too large, as etcd does.
type boundedStore struct{ kv.Store }

type valueTooLarge struct{}

func (valueTooLarge) Error() string    { return "etcdserver: request is too large" }
func (valueTooLarge) Code() codes.Code { return codes.InvalidArgument }

// Put implements kv.Store.
func (s boundedStore) Put(ctx context.Context, key string, value []byte, options kv.PutOptions) (kv.WriteResult, error) {
	if len(value) > maxStoredObject {
		return kv.WriteResult{}, &kv.Error{Err: valueTooLarge{}}
	}
	return s.Store.Put(ctx, key, value, options)
}

// writesSide is one of two servers whose writes are compared: Larder, or upstream's handlers behind upstream's
// filters. Each has its own registry and store.
type writesSide struct {
	*side
	t         testing.TB
	store     *kvtest.Memory
	audited   *events
	spans     *spanLog
	admission *scriptedAdmission
	reach     map[string]func(*http.Request) (*http.Response, error) // by protocol

	mu   sync.Mutex        // guards made: admission plugins name objects, too
	made map[string]string // values that this side has generated, and their names in comparisons
}

func newWritesSide(t testing.TB, name string) (*writesSide, *registrytest.Server) {
	back := registrytest.New(t, nil, func(c *registry.Config) { c.Store = boundedStore{c.Store} })
	s := &writesSide{
		side: &side{name: name, registry: back.Registry}, t: t, made: make(map[string]string),
		store: back.Store, audited: newEvents(), spans: newSpanLog(),
		reach: make(map[string]func(*http.Request) (*http.Response, error)),
	}
	s.admission = &scriptedAdmission{side: s}
	return s, back
}

// connect makes the clients of a side, one for each version of HTTP.
func (s *writesSide) connect(t testing.TB, addr string, pool *x509.CertPool) {
	for _, version := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableCompression: true, ForceAttemptHTTP2: version == "HTTP/2.0"}
		t.Cleanup(client.CloseIdleConnections)
		s.reach[version] = func(req *http.Request) (*http.Response, error) {
			req.URL.Scheme, req.URL.Host = "https", addr
			resp, err := client.RoundTrip(req)
			if err == nil && resp.Proto != version {
				err = fmt.Errorf("got a response over %s, want %s", resp.Proto, version)
			}
			return resp, err
		}
	}
	s.do = func(req *http.Request) *http.Response {
		req.Header.Set("Authorization", "Bearer alice")
		resp, err := s.reach["HTTP/1.1"](req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
}

// newWritesLarder runs Larder for a comparison of writes.
func newWritesLarder(t testing.TB) *writesSide {
	s, back := newWritesSide(t, "larder")
	f := serveBackWith(t, back, func(c *Config) {
		c.Authenticator, c.Authorizer = auditors{}, writesRights{}
		c.AuditPolicy, c.Audit = parsePolicy(t, writesPolicy), s.audited
		c.Admission, c.Spans, c.SampleChance = s.admission.chain(), s.spans.provider, 1
		c.MaxBodyBytes, c.RequestTimeout = maxSentBody, time.Hour
	})
	s.connect(t, f.addr, f.pool)
	return s
}

// newWritesUpstream runs upstream's handlers behind the chain that apiserver composes.
func newWritesUpstream(t testing.TB) *writesSide {
	s, back := newWritesSide(t, "upstream")
	back.Start(t)
	director, err := upstreamDirector(back.Registry, func(gv *endpoints.APIGroupVersion) {
		gv.Admit, gv.Authorizer, gv.MaxRequestBodyBytes = s.admission.chain(), writesRights{}, maxSentBody
	})
	if err != nil {
		t.Fatal(err)
	}
	c := genericapiserver.NewConfig(legacyscheme.Codecs)
	c.Authentication.Authenticator, c.Authorization.Authorizer = auditors{}, writesRights{}
	c.AuditPolicyRuleEvaluator, c.AuditBackend = parsePolicy(t, writesPolicy), backend{s.audited}
	c.RequestInfoResolver = &apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	c.TracerProvider, c.RequestTimeout = s.spans.provider, time.Hour
	c.FeatureGate = utilfeature.DefaultFeatureGate
	front := httptest.NewUnstartedServer(genericapiserver.DefaultBuildHandlerChain(director, c))
	front.EnableHTTP2 = true
	config, pool := testcert.Loopback(t)
	front.TLS = config
	front.Config.ErrorLog = log.New(io.Discard, "", 0)
	front.StartTLS()
	t.Cleanup(front.Close)
	s.connect(t, front.Listener.Addr().String(), pool)
	return s
}

// backend is a sink with nothing to run.
type backend struct{ audit.Sink }

func (backend) Run(<-chan struct{}) error { return nil }
func (backend) Shutdown()                 {}
func (backend) String() string            { return "test" }

// revision returns the revision of a side's store.
func (s *writesSide) revision(t testing.TB) int64 {
	_, _, revision, err := s.store.Get(context.Background(), "/registry/none")
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// align brings the stores of both sides to one revision.
func align(t testing.TB, a, b *writesSide) {
	for a.revision(t) != b.revision(t) {
		older := a
		if a.revision(t) > b.revision(t) {
			older = b
		}
		older.store.PutAll(map[string][]byte{"/registry/aligned/x": {1}})
	}
}

// stored is an object of a side as its store has it.
func (s *writesSide) stored(key string) (object runtime.Object, metadata metav1.Object, revision int64) {
	item, found, _, err := s.store.Get(context.Background(), key)
	if err != nil || !found {
		return nil, nil, 0
	}
	object, _, err = legacyscheme.Codecs.UniversalDeserializer().Decode(item.Value, nil, nil)
	if err != nil {
		return nil, nil, 0
	}
	metadata, err = meta.Accessor(object)
	if err != nil {
		return nil, nil, 0
	}
	return object, metadata, item.Revision
}

// contents are all objects below the keys that contain part, in words that may be compared.
func (s *writesSide) contents(t testing.TB, part string) []string {
	page, err := s.store.Range(context.Background(), kv.RangeOptions{Prefix: "/registry/"})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, item := range page.Items {
		if !strings.Contains(item.Key, part) {
			continue
		}
		object, _, err := legacyscheme.Codecs.UniversalDeserializer().Decode(item.Value, nil, nil)
		text, jsonErr := json.Marshal(object)
		all = append(all, s.plain(fmt.Sprintf("%s at %d, %d bytes: %s %v %v", item.Key, item.Revision, len(item.Value), text, err, jsonErr)))
	}
	return all
}

var (
	momentOf = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	ageOf    = regexp.MustCompile(`"\d+s"`)
	// typedErrors match errors that upstream finds in a configuration. Of several errors, upstream returns a random
	// one.
	typedErrors = regexp.MustCompile(`(failed to create typed patch object \([^)]*\)): (?:[^"\\]|\\.)*`)

	// quotedBytes are the beginning of a body that is not JSON. It may have a part of a UID.
	quotedBytes = regexp.MustCompile(`\([0-9a-f]+ \.\.\.\)`)

	// conflictCauses come in no order from upstream.
	conflictCauses = regexp.MustCompile(`\{\s*"reason": ?"FieldManagerConflict",\s*"message": ?"(?:[^"\\]|\\.)*",\s*"field": ?"(?:[^"\\]|\\.)*"\s*\}|- field: .*\n\s*message: .*\n\s*reason: FieldManagerConflict`)
)

// plain replaces values that this side has generated by names that both sides use.
func (s *writesSide) plain(text string) string {
	text = momentOf.ReplaceAllStringFunc(text, func(at string) string {
		if when, err := time.Parse(time.RFC3339, at); err == nil && time.Since(when).Abs() < time.Hour {
			return "<now>"
		}
		return at
	})
	text = quotedBytes.ReplaceAllString(typedErrors.ReplaceAllString(text, "$1"), "(bytes)")
	causes := conflictCauses.FindAllString(text, -1)
	slices.Sort(causes)
	text = conflictCauses.ReplaceAllStringFunc(text, func(string) (next string) {
		next, causes = causes[0], causes[1:]
		return next
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	text = anyUUID.ReplaceAllStringFunc(text, func(own string) string {
		if s.made[own] == "" {
			s.made[own] = fmt.Sprintf("<uid %d>", len(s.made))
		}
		return s.made[own]
	})
	return ageOf.ReplaceAllString(text, `"<age>"`)
}

// send sends a request and returns all that can be seen of it.
func (s *writesSide) send(t testing.TB, r *writeRequest) (seen observed, err error) {
	body := r.body(s)
	req, err := http.NewRequest(r.method, "https://larder.test"+s.resolve(r.kind, r.path), bytes.NewReader(body))
	if err != nil {
		return seen, err
	}
	if len(body) == 0 {
		req.Body = http.NoBody
	}
	for name, value := range r.header {
		req.Header[name] = []string{value}
	}
	s.admission.begin(r.admission)
	resp, err := s.reach[r.protocol](req)
	if err != nil {
		return seen, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	if err != nil {
		return seen, err
	}
	seen.code = resp.StatusCode
	seen.body = s.plain(readable(resp.Header.Get("Content-Type"), body))
	for name, values := range resp.Header {
		switch name {
		case "Date", "Audit-Id", "Content-Length":
		default:
			seen.header = append(seen.header, s.plain(fmt.Sprintf("%s: %q", name, values)))
		}
	}
	slices.Sort(seen.header)
	seen.admission = s.admission.end()
	kind, _, _ := strings.Cut(req.Header.Get("Content-Type"), ";")
	seen.audit = s.records(t, resp.Header.Get("Audit-Id"), types.PatchType(kind))
	if !strings.Contains(seen.audit[0], `"Stage":"ResponseStarted"`) { // like requests that are refused before spans begin
		proctest.Eventually(t, "the span of a request", func() error {
			spans, ended := s.spans.take(resp.Header.Get("Audit-Id"))
			if !ended {
				return errors.New("it has not ended")
			}
			if seen.code >= http.StatusMultipleChoices || r.admission.races > 0 || r.admission.large || r.method == "DELETE" {
				return nil // spans of deleted collections have more, refusals have other texts, and an update that is retried decodes its body again
			}
			for _, span := range spans {
				seen.spans = append(seen.spans, s.plain(span))
			}
			return nil
		})
	}
	seen.revision = s.revision(t)
	return seen, nil
}

// observed is everything visible of a request: to the client, to admission, in the audit log and in the store.
type observed struct {
	code      int
	header    []string
	body      string
	admission []string
	audit     []string
	spans     []string
	revision  int64
}

// records returns the audit records of a request whose response has been read. kind is its Content-Type.
func (s *writesSide) records(t testing.TB, id string, kind types.PatchType) (all []string) {
	for {
		select {
		case one := <-s.audited.all:
			if string(one.AuditID) != id && len(all) == 0 && one.UserAgent == "tester/1.0" {
				continue // of a request that is not compared
			}
			if string(one.AuditID) != id {
				all = append(all, "the record of another request")
			}
			one.AuditID = ""
			one.RequestReceivedTimestamp.Time, one.StageTimestamp.Time = time.Time{}, time.Time{}
			withoutLatencies(one)
			if one.Verb == "patch" && one.RequestObject != nil && s.name == "upstream" { // it records any patch; Larder only JSON
				if one.RequestObject.Raw = patches.ToJSON(kind, one.RequestObject.Raw); one.RequestObject.Raw == nil {
					one.RequestObject = nil
				}
			}
			objects := [2]*runtime.Unknown{one.RequestObject, one.ResponseObject}
			one.RequestObject, one.ResponseObject = nil, nil
			text, err := json.Marshal(one)
			if err != nil {
				t.Fatal(err)
			}
			for _, object := range objects {
				if object != nil {
					text = fmt.Appendf(text, "\n  %v %q %q %s", object.TypeMeta, object.ContentType, object.ContentEncoding, object.Raw)
				}
			}
			all = append(all, s.plain(string(text)))
			if one.Stage != auditapi.StageRequestReceived {
				return all
			}
		case <-time.After(proctest.Patience):
			t.Fatalf("%s: got records %q, want one of %s", s.name, all, id)
		}
	}
}

// readable returns a body as text; protobuf becomes JSON with its length.
func readable(media string, body []byte) string {
	if !strings.HasPrefix(media, runtime.ContentTypeProtobuf) {
		return string(body)
	}
	object, kind, err := legacyscheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		scheme := runtime.NewScheme()
		metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
		scheme.AddKnownTypes(metav1.SchemeGroupVersion, &metav1.PartialObjectMetadata{}, &metav1.PartialObjectMetadataList{})
		if object, kind, err = protobufcodec.NewSerializer(scheme, scheme).Decode(body, nil, nil); err != nil {
			return fmt.Sprintf("%v: %q", err, body)
		}
	}
	text, err := json.Marshal(object)
	if kind.Kind == "Status" { // with typedErrors, maybe
		return fmt.Sprintf("%s: %s %v", kind, text, err)
	}
	return fmt.Sprintf("%s in %d bytes: %s %v", kind, len(body), text, err)
}
