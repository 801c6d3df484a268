package exchange

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/larder-io/larder/httpapi/request"
)

// completed is the last event of a request; nil if it was not stored.
type completed struct {
	*auditapi.Event
	stages []auditapi.Stage // of all events
}

// ProcessEvents implements audit.Sink.
func (c *completed) ProcessEvents(all ...*auditapi.Event) bool {
	for _, e := range all {
		c.stages = append(c.stages, e.Stage)
		if e.Stage == auditapi.StageResponseComplete {
			c.Event = e.DeepCopy()
		}
	}
	return true
}

// TestRecordsWithoutResponses checks the stages of requests that end without a response.
func TestRecordsWithoutResponses(t *testing.T) {
	for verb, want := range map[string][]auditapi.Stage{
		"get":   {auditapi.StageResponseComplete},
		"watch": {auditapi.StageResponseStarted, auditapi.StageResponseComplete},
	} {
		var stored completed
		record := NewAuditRecord(t.Context(), "id", &request.Request{Verb: verb})
		record.Begin(audit.RequestAuditConfig{Level: auditapi.LevelMetadata}, &stored)
		record.Describe(httptest.NewRequest(http.MethodGet, "/", nil), time.Now(), authorizer.AttributesRecord{User: &user.DefaultInfo{}})
		if record.End(); !slices.Equal(stored.stages, want) {
			t.Errorf("%s: stages %v, want %v", verb, stored.stages, want)
		}
	}
}

// TestSmallResponsesAreRecordedBeforeTheyAreSent checks that the record of a small response ends before the response is
// sent, and has the latencies of a slow request.
func TestSmallResponsesAreRecordedBeforeTheyAreSent(t *testing.T) {
	for name, c := range map[string]struct {
		response     Response
		before, fast bool // a slow request's record, or only a fast one's, ends before the response is sent
	}{
		"nothing":            {Response{}, true, true},
		"bytes":              {Response{Bytes: make([]byte, RecordSize)}, true, true},
		"many bytes":         {Response{Bytes: make([]byte, RecordSize+1)}, false, true},
		"a small body":       {Response{Body: unwritten{}, Size: RecordSize}, true, true},
		"a large body":       {Response{Body: unwritten{}, Size: RecordSize + 1}, false, false},
		"a body of any size": {Response{Body: unwritten{}, Size: UnknownSize}, false, false},
	} {
		for _, took := range []time.Duration{0, 2 * slowRequest} {
			var stored completed
			record := NewAuditRecord(t.Context(), "id", &request.Request{})
			record.Begin(audit.RequestAuditConfig{Level: auditapi.LevelMetadata}, &stored)
			record.Describe(httptest.NewRequest(http.MethodGet, "/", nil), time.Now().Add(-took), authorizer.AttributesRecord{User: &user.DefaultInfo{}})
			x := &Exchange{Response: c.response, Audit: record, encoding: time.Now().Add(-1)}
			x.EndAudit()
			if before := stored.Event != nil; before != (c.before || c.fast && took == 0) {
				t.Errorf("%s after %v: stored before it is sent: %v", name, took, before)
			}
			x.Ready()
			x.Charge(0, time.Millisecond)
			x.Close()
			for _, part := range []string{"serialize-response-object", "response-write", "total"} {
				if took > 0 && stored.Annotations["apiserver.latency.k8s.io/"+part] == "" {
					t.Errorf("%s after %v: no latency of %s", name, took, part)
				}
			}
		}
	}
}
