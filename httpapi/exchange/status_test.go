package exchange

import (
	"net/http"
	"net/http/httptest"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
)

// TestStatusesMatchUpstream compares Statuses with those of upstream's writer, also of errors with text that YAML
// forbids.
func TestStatusesMatchUpstream(t *testing.T) {
	for _, text := range []string{"plain", "a\x7fb", "a\xffb"} {
		for _, accept := range []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"} {
			err, version := apierrors.NewBadRequest(text), schema.GroupVersion{Version: "v1"}
			want, req := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
			req.Header.Set("Accept", accept)
			code := responsewriters.ErrorNegotiated(err, legacyscheme.Codecs, version, want, req)
			status := responsewriters.ErrorToAPIStatus(err)
			contentType, body := encodeStatus(status, accept, false, legacyscheme.Codecs, version)
			if int(status.Code) != code || contentType != want.Header().Get("Content-Type") || string(body) != want.Body.String() {
				t.Errorf("%q in %s: %d %s %q, want %d %s %q", text, accept, status.Code, contentType, body, code, want.Header().Get("Content-Type"), want.Body)
			}
		}
	}
}
