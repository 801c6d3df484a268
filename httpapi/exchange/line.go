package exchange

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
)

// lineVerbosity is the lowest verbosity at which every request is logged (apiserver pkg/server/httplog/httplog.go).
const lineVerbosity = 3

// Lines reports whether requests are logged.
func Lines() bool { return klog.V(lineVerbosity).Enabled() }

// Line is the log line of one request, in kube-apiserver's format. The code that finishes the request writes it.
// Methods of a nil Line do nothing.
type Line struct {
	began  time.Time
	values []any  // names and values; Write inserts the latency after the verb and the URI
	info   string // the end of the line
}

// maxAuditID is the length to which the log truncates audit IDs (apiserver pkg/audit/context.go).
const maxAuditID = 64

// Line returns the log line of x, or nil if x is not logged or its line was taken before.
func (x *Exchange) Line() *Line {
	if !Lines() || x.Logged || x.Path == "" || x.Carrier.Internal() {
		return nil
	}
	x.Logged = true
	id := x.AuditID
	if len(id) > maxAuditID {
		id = id[:maxAuditID] + "..."
	}
	return &Line{
		began: x.Received,
		values: append([]any{
			"verb", NormalizedVerb(x), "URI", x.Target, "userAgent", string(x.Peek("User-Agent")), "audit-ID", id, "srcIP", x.Carrier.RemoteAddr().String(),
		}, x.LogValues...),
		info: x.Info,
	}
}

// NormalizedVerb returns the verb of x as upstream's log and metrics name it.
func NormalizedVerb(x *Exchange) string {
	req := &http.Request{Method: x.Method, URL: &url.URL{Path: x.Path, RawQuery: x.RawQuery}, Header: http.Header{}}
	req.Header.Set("Content-Type", string(x.Peek("Content-Type")))
	return metrics.NormalizedVerb(req.WithContext(apirequest.WithRequestInfo(context.Background(), x.RequestInfo())))
}

// Add appends a key and its value to the line.
func (l *Line) Add(key string, value any) {
	if l != nil {
		l.values = append(l.values, key, value)
	}
}

// Write logs the request with the code of its response. It logs body only for server errors other than 504.
func (l *Line) Write(code int, body []byte) {
	if l == nil {
		return
	}
	all := append(slices.Insert(l.values, 4, any("latency"), any(time.Since(l.began))), "resp", code)
	if code >= http.StatusInternalServerError && code != http.StatusGatewayTimeout {
		all = append(all, "statusStack", "\n"+Stack())
		const most = 4 << 10
		l.info += "logging error output: " + strconv.Quote(string(body[:min(len(body), most)])) + "\n"
	}
	if l.info != "" {
		all = append(all, "addedInfo", l.info)
	}
	klog.V(lineVerbosity).InfoSDepth(1, "HTTP", all...)
}
