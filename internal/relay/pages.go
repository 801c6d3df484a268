package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/larder-io/larder/kv"
)

// keptTokens is how many continue tokens are kept.
const keptTokens = 64

// tokenKey is the Range that needs a continue token next.
type tokenKey struct {
	prefix   string
	revision int64
	start    string
}

// Range lists one page. A page at a revision is the first page of that revision, or the successor of a
// page that an earlier Range returned; any other start fails with kv.ErrCompacted. If opts.Prefix is
// the key of an object, the page has at most that object. KeysOnly and CountOnly change nothing.
func (s *Store) Range(ctx context.Context, opts kv.RangeOptions) (kv.Page, error) {
	page, err := s.page(ctx, opts)
	if err != nil {
		return kv.Page{}, s.fail("list", err)
	}
	return page, nil
}

func (s *Store) page(ctx context.Context, opts kv.RangeOptions) (kv.Page, error) {
	if s.ctx.Err() != nil {
		return kv.Page{}, kv.ErrClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(kv.ErrClosed) })()
	at, err := s.scopeOf(opts.Prefix)
	if err != nil {
		return kv.Page{}, err
	}
	q := listing{scope: at, limit: max(opts.Limit, 0)}
	switch {
	case opts.Start == "":
		q.exact = opts.Revision
	case opts.Revision == 0:
		return kv.Page{}, fmt.Errorf("a page that starts at %q needs a revision", opts.Start)
	default:
		token, ok := s.tokens.Get(tokenKey{opts.Prefix, opts.Revision, opts.Start})
		if !ok {
			return kv.Page{}, fmt.Errorf("%w: no page of revision %d ended before %q", kv.ErrCompacted, opts.Revision, opts.Start)
		}
		q.token = token.(string)
	}
	sent, err := s.list(ctx, q)
	if err != nil {
		return kv.Page{}, err
	}
	return s.pageOf(opts, sent)
}

// pageOf makes the page that opts requests from the list that the upstream sent.
func (s *Store) pageOf(opts kv.RangeOptions, sent list) (kv.Page, error) {
	page := kv.Page{Revision: sent.revision, Count: int64(len(sent.objects)) + sent.remaining, More: sent.token != ""}
	if opts.Revision != 0 && page.Revision != opts.Revision {
		return kv.Page{}, fmt.Errorf("%w: upstream lists revision %d instead of %d", kv.ErrCompacted, page.Revision, opts.Revision)
	}
	page.Items = make([]kv.Item, len(sent.objects))
	size := int64(0)
	for i, o := range sent.objects {
		size += int64(len(o.value))
		page.Items[i] = kv.Item{Key: s.config.Prefix + o.key, Value: o.value, Revision: o.revision}
	}
	s.config.Loaded(opts.Start == "", size)
	slices.SortFunc(page.Items, func(a, b kv.Item) int { return cmp.Compare(a.Key, b.Key) })
	for i := 1; i < len(page.Items); i++ {
		if page.Items[i].Key == page.Items[i-1].Key {
			return kv.Page{}, fmt.Errorf("upstream lists %s twice", page.Items[i].Key)
		}
	}
	switch {
	case len(page.Items) > 0 && (page.Items[0].Key < opts.Start || !strings.HasPrefix(page.Items[0].Key, opts.Prefix)):
		return kv.Page{}, fmt.Errorf("upstream lists %s in a page of %q from %q on", page.Items[0].Key, opts.Prefix, opts.Start)
	case page.More && len(page.Items) == 0:
		return kv.Page{}, errors.New("upstream sent an empty page that is not the last")
	case page.More:
		next := page.Items[len(page.Items)-1].Key + "\x00"
		s.tokens.Add(tokenKey{opts.Prefix, page.Revision, next}, sent.token)
	}
	return page, nil
}

// Get returns one object and the upstream's revision. It lists the object's name, because the response to a GET does not
// contain that revision.
func (s *Store) Get(ctx context.Context, key string) (item kv.Item, found bool, revision int64, err error) {
	at, err := s.scopeOf(key)
	if err == nil && at.name == "" {
		err = fmt.Errorf("no object has the key %q", key)
	}
	var page kv.Page
	if err == nil {
		page, err = s.page(ctx, kv.RangeOptions{Prefix: key})
	}
	if err != nil {
		return kv.Item{}, false, 0, s.fail("get", err)
	}
	if len(page.Items) == 0 || page.Items[0].Key != key {
		return kv.Item{}, false, page.Revision, nil
	}
	return page.Items[0], true, page.Revision, nil
}
