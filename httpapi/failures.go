package httpapi

import (
	"bytes"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/httpapi/statuspage"
)

// recordFailure records the response to x for the status page if its code is 500 or above, unless a handler has taken
// over the connection.
func (c *chain) recordFailure(x *apiCall) {
	code := x.StatusCode()
	if code < http.StatusInternalServerError {
		return
	}
	failure := statuspage.Failure{
		Time: time.Now().UTC(), Code: code, Method: x.Method, Path: strings.Clone(x.Path), Message: messageOf(x.Bytes),
		UserAgent: string(x.Peek("User-Agent")), AuditID: x.AuditID,
	}
	if x.User != nil {
		failure.User = x.User.GetName()
	}
	c.failures.Add(failure)
}

// longestStatus is the maximum length of a Status that is decoded for its message.
const longestStatus = 64 << 10

// messageOf returns the message of a response that is a Status or text.
func messageOf(body []byte) string {
	if len(body) > longestStatus {
		return ""
	}
	if object, _, err := legacyscheme.Codecs.UniversalDeserializer().Decode(body, nil, nil); err == nil {
		if status, ok := object.(*metav1.Status); ok {
			return status.Message
		}
	}
	if !utf8.Valid(body) || bytes.HasPrefix(body, []byte("{")) {
		return ""
	}
	return strings.TrimSpace(string(body))
}
