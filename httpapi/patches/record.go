package patches

import (
	"bytes"
	"io"
	"net/http"

	"k8s.io/apimachinery/pkg/types"
)

// SparesRecord reports whether the patch that req sends does the same to an object without the
// record of its fields: a merge patch, strategic or not, that does not name the record. The
// request to go on with has the body that was read of req.
func SparesRecord(req *http.Request) (*http.Request, bool) {
	kind := typeOf(req)
	if kind != types.StrategicMergePatchType && kind != types.MergePatchType || req.Body == nil {
		return req, false
	}
	data, err := io.ReadAll(req.Body)
	body := io.Reader(bytes.NewReader(data))
	if err != nil {
		body = io.MultiReader(body, failing{err})
	}
	own := *req
	own.Body = struct {
		io.Reader
		io.Closer
	}{body, req.Body}
	return &own, err == nil && !namesRecord(data)
}

// namesRecord reports whether JSON may have managedFields in it. What is escaped may be that.
func namesRecord(data []byte) bool {
	return bytes.Contains(bytes.ToLower(data), []byte("managedfields")) || bytes.Contains(data, []byte(`\u`))
}
