package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/larder-io/larder/kv"
)

const (
	// listTimeout bounds a list. kube-apiserver's own timeout is a minute.
	listTimeout = 75 * time.Second
	// openTimeout bounds the time until the upstream begins to respond to a watch.
	openTimeout = 30 * time.Second

	maxPage   = 1 << 30
	maxFrame  = 16 << 20 // as in client-go: apimachinery pkg/runtime/serializer/streaming
	maxStatus = 64 << 10
)

// listing is one request for a list.
type listing struct {
	scope
	limit int64  // 0 is all
	token string // of the page before
	exact int64  // the revision; 0 asks for the present, unless there is a token
}

// list requests one list from the upstream. A consistent one is compared with the history.
func (s *Store) list(ctx context.Context, q listing) (list, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	query := make(url.Values)
	if q.limit > 0 {
		query.Set("limit", strconv.FormatInt(q.limit, 10))
	}
	if q.name != "" {
		query.Set("fieldSelector", fields.OneTermEqualSelector("metadata.name", q.name).String())
	}
	switch {
	case q.token != "":
		query.Set("continue", q.token)
	case q.exact != 0:
		query.Set("resourceVersion", strconv.FormatInt(q.exact, 10))
		query.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchExact))
	}
	mark, consistent := s.history.mark(), q.token == "" && q.exact == 0
	body, err := s.get(ctx, q.namespace, query)
	if consistent && (err == nil || IsRefusal(err)) {
		s.refused.Store(err != nil)
	}
	if err != nil {
		return list{}, err
	}
	defer func() { _ = body.Close() }()
	data, err := readAll(body, s.config.MaxPage)
	if err == errTooLarge {
		s.config.Loaded(false, -1)
	}
	if err != nil {
		return list{}, cause(ctx, err)
	}
	page, err := s.codec.list(data)
	if err == nil && q.limit > 0 && int64(len(page.objects)) > q.limit {
		err = fmt.Errorf("%w: a page has more than %d objects", errMalformed, q.limit)
	}
	if err != nil {
		return list{}, err
	}
	if consistent && s.history.observe(mark, page.revision) {
		s.config.Logger.Warn("upstream's history was replaced", "revision", page.revision, "before", mark.revision)
		s.endWatches(kv.ErrReplaced)
	}
	return page, nil
}

// get sends one request for the resource and returns the body of the response, which has the requested media type.
func (s *Store) get(ctx context.Context, namespace string, query url.Values) (io.ReadCloser, error) {
	elements := []string{"apis", s.config.Resource.Group, s.config.Resource.Version}
	if s.config.Resource.Group == "" {
		elements = []string{"api", s.config.Resource.Version}
	}
	if namespace != "" {
		elements = append(elements, "namespaces", namespace)
	}
	target := s.config.Base.JoinPath(append(elements, s.config.Resource.Resource)...)
	target.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", s.codec.mediaType())
	response, err := s.config.Client.Do(request)
	if err != nil {
		return nil, cause(ctx, err)
	}
	media, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if response.StatusCode == http.StatusOK && err == nil && media == s.codec.mediaType() {
		return response.Body, nil
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, s.refusal(response)
	}
	text := fmt.Sprintf("got a response of %q, want %s", response.Header.Get("Content-Type"), s.codec.mediaType())
	if media != runtime.ContentTypeJSON && media != runtime.ContentTypeProtobuf {
		return nil, errors.New(text) // the page of a proxy, which decides nothing
	}
	return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable, Message: text}}
}

// refusal returns the error of a response without success.
func (s *Store) refusal(response *http.Response) error {
	body, _ := readAll(response.Body, maxStatus) // without it the code must do
	seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
	if status, err := decodeStatus(body); err == nil && status.Code != 0 {
		if seconds > 0 && (status.Details == nil || status.Details.RetryAfterSeconds == 0) {
			status.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(min(seconds, 3600))}
		}
		return statusError(status)
	}
	err := apierrors.NewGenericServerResponse(response.StatusCode, "get", s.config.Resource.GroupResource(), "", http.StatusText(response.StatusCode), min(seconds, 3600), true)
	return statusError(err.Status())
}

// IsRefusal reports whether the upstream has responded that it does not serve the resource. It may also refuse it to
// this relay, or in the encoding that the relay needs.
func IsRefusal(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsNotAcceptable(err)
}

// statusError returns the upstream's Status as an error. It is also kv.ErrCompacted if the upstream no longer has the
// revision.
func statusError(status metav1.Status) error {
	err := &apierrors.StatusError{ErrStatus: status}
	if status.Code == http.StatusGone {
		return fmt.Errorf("%w: %w", kv.ErrCompacted, err)
	}
	return err
}

// cause returns why ctx has ended, or err if it has not.
func cause(ctx context.Context, err error) error {
	if reason := context.Cause(ctx); reason != nil {
		return reason
	}
	return err
}

var errTooLarge = errors.New("response of the upstream is too large")

// readAll reads a body of at most limit bytes.
func readAll(body io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = errTooLarge
	}
	return data, err
}
