package security

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/larder-io/larder/internal/proctest"
)

// encodings are media types of reads.
var encodings = []string{
	"application/json", "application/yaml", "application/vnd.kubernetes.protobuf",
	"application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
}

// streams are media types of watches.
var streams = []string{
	"application/json", "application/vnd.kubernetes.protobuf;stream=watch",
	"application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
	"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
}

func oneOf[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

func (s *storm) actions() []action {
	return []action{
		{name: "get", do: s.get}, {name: "list", do: s.list}, {name: "list, gzip", do: s.listZipped}, {name: "list, large", do: s.listLarge, mute: true},
		{name: "write", do: s.write}, {name: "rejected write", do: s.rejected}, {name: "header", do: s.header},
		{name: "elsewhere", do: s.elsewhere, mute: true}, {name: "watch", do: s.watch}, {name: "websocket", do: s.websocket},
		{name: "pipeline", do: s.pipeline, mute: true}, {name: "broken off", do: s.breakOff, mute: true}, {name: "timeout", do: s.timeout, mute: true},
	}
}

// object returns the path of a random object of the tenant.
func (t tenant) object(r *rand.Rand) string {
	return oneOf(r, t.path("configmaps/c-1"), t.path("secrets/s"), "/apis/example.com/v1/namespaces/"+t.namespace+"/notes/n", "/api/v1/namespaces/"+t.namespace)
}

// collection returns the path of a random collection of the tenant, with an encoding that it has.
func (t tenant) collection(r *rand.Rand) (path, accept string) {
	if r.IntN(4) == 0 {
		return "/apis/example.com/v1/namespaces/" + t.namespace + "/notes", oneOf(r, encodings[0], encodings[1], encodings[3], encodings[4])
	}
	return oneOf(r, t.path("configmaps"), t.path("secrets")), oneOf(r, encodings...)
}

// fine returns got, and an error unless the code is 429 or one of codes.
func fine(code int, got []byte, err error, codes ...int) ([]byte, error) {
	codes = append(codes, http.StatusTooManyRequests)
	if err == nil && !slices.Contains(codes, code) {
		err = fmt.Errorf("code %d, want one of %v", code, codes)
	}
	return got, err
}

func (s *storm) get(ctx context.Context, who tenant, r *rand.Rand) ([]byte, error) {
	accept := oneOf(r, "application/json", "application/yaml", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
	code, got, err := s.send(ctx, who, "GET", who.object(r)+oneOf(r, "", "?resourceVersion=0", "?pretty=true"), "", map[string]string{"Accept": accept})
	return fine(code, got, err, http.StatusOK)
}

func (s *storm) list(ctx context.Context, who tenant, r *rand.Rand) ([]byte, error) {
	path, accept := who.collection(r)
	query := oneOf(r, "", "?resourceVersion=0", "?pretty=true", "?limit=2", "?labelSelector=l%3D"+who.mark)
	code, got, err := s.send(ctx, who, "GET", path+query, "", map[string]string{"Accept": accept})
	return fine(code, got, err, http.StatusOK)
}

func (s *storm) listZipped(ctx context.Context, who tenant, r *rand.Rand) ([]byte, error) {
	header := map[string]string{"Accept": oneOf(r, encodings...), "Accept-Encoding": "gzip"}
	code, got, err := s.send(ctx, who, "GET", who.path("configmaps")+oneOf(r, "", "?pretty=true", "?labelSelector=l"), "", header)
	return fine(code, got, err, http.StatusOK)
}

// listLarge makes lists so large that they are compressed in cached pieces, or sent in pieces that are not cached.
func (s *storm) listLarge(ctx context.Context, _ tenant, r *rand.Rand) ([]byte, error) {
	who := s.tenants[r.IntN(len(s.tenants)/largeOnes)*largeOnes]
	code, got, err := s.send(ctx, who, "GET", who.path("configmaps")+oneOf(r, "", "?pretty=true"), "",
		map[string]string{"Accept": oneOf(r, encodings...), "Accept-Encoding": oneOf(r, "gzip", "gzip", "identity")})
	if got, err = fine(code, got, err, http.StatusOK); err != nil {
		return nil, fmt.Errorf("%w\n%.2000q", err, got)
	}
	_, err = who.foreign(got)
	return nil, err
}

func (s *storm) write(ctx context.Context, who tenant, r *rand.Rand) ([]byte, error) {
	merge := map[string]string{"Content-Type": "application/merge-patch+json"}
	switch r.IntN(3) {
	case 0:
		body := fmt.Sprintf(`{"metadata":{"annotations":{"b":"%s-%d"}}}`, who.mark, r.Uint64())
		code, got, err := s.send(ctx, who, "PATCH", who.object(r), body, merge)
		return fine(code, got, err, http.StatusOK, http.StatusConflict, http.StatusForbidden) // a tenant may not change the namespace itself
	case 1:
		body := fmt.Sprintf(`{"data":{"extra":"%s %d"}}`, strings.Repeat(who.mark, 1+r.IntN(50)), r.Uint64())
		code, got, err := s.send(ctx, who, "PATCH", who.path("configmaps/c-2"), body, merge)
		return fine(code, got, err, http.StatusOK, http.StatusConflict)
	}
	name := fmt.Sprintf("x-%d", r.Uint64())
	code, made, err := s.send(ctx, who, "POST", who.path("configmaps"), configMap(who, name, r.IntN(4<<10)), map[string]string{"Content-Type": "application/json"})
	if made, err = fine(code, made, err, http.StatusCreated); err != nil || code != http.StatusCreated {
		return made, err
	}
	for { // deletes the object in any case, so that their number does not grow
		code, gone, err := s.send(ctx, who, "DELETE", who.path("configmaps/"+name), "", nil)
		if gone, err = fine(code, gone, err, http.StatusOK); err != nil || code == http.StatusOK {
			return append(made, gone...), err
		}
	}
}

// rejected sends requests whose errors quote the request.
func (s *storm) rejected(ctx context.Context, who tenant, r *rand.Rand) ([]byte, error) {
	jsonType := map[string]string{"Content-Type": "application/json"}
	var code int
	var got []byte
	var err error
	switch r.IntN(5) {
	case 0:
		code, got, err = s.send(ctx, who, "POST", who.path("configmaps"), configMap(who, who.mark+"_", 64), jsonType)
	case 1:
		code, got, err = s.send(ctx, who, "GET", who.path("configmaps/"+who.mark), "", nil)
	case 2:
		code, got, err = s.send(ctx, who, "POST", who.path("configmaps"), configMap(who, "c-1", 64), jsonType)
	case 3:
		code, got, err = s.send(ctx, who, "GET", who.path("secrets")+"?labelSelector="+who.mark+"%20in%20"+who.mark, "", nil)
	default:
		body := fmt.Sprintf(`{"metadata":{"name":%q},"data":{},"%[1]s":1}`, who.mark)
		code, got, err = s.send(ctx, who, "POST", who.path("configmaps")+"?dryRun=All&fieldValidation="+oneOf(r, "Warn", "Strict"), body, jsonType)
	}
	return fine(code, got, err, http.StatusCreated, http.StatusBadRequest, http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity)
}

// header sends a request whose response has header fields with values of the request.
func (s *storm) header(ctx context.Context, who tenant, r *rand.Rand) ([]byte, error) {
	code, got, err := s.send(ctx, who, "GET", oneOf(r, who.object(r), "/version", "/apis", who.path("configmaps/none")), "", map[string]string{
		"Audit-ID": who.mark, "User-Agent": who.mark, "X-Anything": strings.Repeat(who.mark, r.IntN(100)),
	})
	return fine(code, got, err, http.StatusOK, http.StatusNotFound)
}

// elsewhere requests other tenants' objects.
func (s *storm) elsewhere(ctx context.Context, who tenant, r *rand.Rand) ([]byte, error) {
	other := oneOf(r, s.tenants...)
	if other.number == who.number {
		return nil, nil
	}
	path := oneOf(r, other.object(r), other.path("configmaps"), other.path("secrets")+"?watch=true", "/api/v1/secrets", "/apis/example.com/v1/notes")
	code, got, err := s.send(ctx, who, "GET", path, "", nil)
	return fine(code, got, err, http.StatusForbidden)
}

// watch reads initial events and a change, or closes the connection before.
func (s *storm) watch(ctx context.Context, who tenant, r *rand.Rand) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, proctest.Patience)
	defer cancel()
	path := who.path("configmaps") + "?watch=true" + oneOf(r, "", "&resourceVersion=0", "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
	req, err := http.NewRequestWithContext(ctx, "GET", "https://"+s.address+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+who.token)
	req.Header.Set("Accept", oneOf(r, streams...))
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var all bytes.Buffer
	_ = resp.Header.Write(&all) // to a buffer
	if resp.StatusCode != http.StatusOK {
		_, got, err := gather(resp)
		return fine(resp.StatusCode, got, err)
	}
	first := 1 << 10
	if !strings.Contains(req.Header.Get("Accept"), "as=") {
		first = 100 << 10 // six objects have a quarter of that each
	}
	if _, err := io.CopyN(&all, resp.Body, int64(1+r.IntN(first))); err != nil || r.IntN(2) == 0 {
		return all.Bytes(), err
	}
	change := fmt.Sprintf("change-%d", r.Uint64())
	code, got, err := s.send(ctx, who, "PATCH", who.path("configmaps/c-3"), fmt.Sprintf(`{"metadata":{"annotations":{"c":%q}}}`, change), map[string]string{"Content-Type": "application/merge-patch+json"})
	if got, err = fine(code, got, err, http.StatusOK, http.StatusConflict); err != nil || code != http.StatusOK {
		return append(all.Bytes(), got...), err
	}
	piece := make([]byte, 32<<10)
	for !bytes.Contains(all.Bytes(), []byte(change)) {
		n, err := resp.Body.Read(piece)
		if all.Write(piece[:n]); err != nil {
			return all.Bytes(), err
		}
	}
	return all.Bytes(), nil
}

// open opens a connection for one tenant.
func (s *storm) open(ctx context.Context) (net.Conn, error) {
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	conn, err := dialer.DialContext(ctx, "tcp", s.address)
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(proctest.Patience))
	}
	return conn, err
}

// websocket watches over a websocket.
func (s *storm) websocket(ctx context.Context, who tenant, r *rand.Rand) ([]byte, error) {
	conn, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s?watch=true HTTP/1.1\r\nHost: h\r\nOrigin: https://h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"+
		"Sec-WebSocket-Version: 13\r\nAuthorization: Bearer %s\r\n\r\n", who.path("configmaps"), who.token)
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		_, got, err := gather(resp)
		return fine(resp.StatusCode, got, err)
	}
	var all bytes.Buffer
	_, err = io.CopyN(&all, in, int64(2<<10+r.IntN(60<<10)))
	return all.Bytes(), err
}

// pipeline sends requests of several tenants over one connection. Each must get its own response, in order.
func (s *storm) pipeline(ctx context.Context, _ tenant, r *rand.Rand) ([]byte, error) {
	conn, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var all []tenant
	var requests strings.Builder
	for range 2 + r.IntN(8) {
		who := oneOf(r, s.tenants...)
		all = append(all, who)
		path, accept := who.collection(r)
		fmt.Fprintf(&requests, "GET %s HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %s\r\nAccept: %s\r\nAudit-ID: %s\r\n\r\n", oneOf(r, path, path+"?limit=1"), who.token, accept, who.mark)
	}
	sent := make(chan error, 1)
	go func() { // meanwhile, because the responses do not fit into the kernel's buffers
		_, err := io.WriteString(conn, requests.String())
		sent <- err
	}()
	defer func() { conn.Close(); <-sent }()
	in := bufio.NewReader(conn)
	for i, who := range all {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			return nil, err
		}
		code, got, err := gather(resp)
		if got, err = fine(code, got, err, http.StatusOK); err != nil {
			return nil, err
		}
		if own, err := who.foreign(got); err != nil || own < 2 && code == http.StatusOK {
			return nil, fmt.Errorf("response %d, of %s: got %d own marks, %w\n%.2000q", i, who.mark, own, err, got)
		}
	}
	return nil, nil
}

// breakOff closes the connection at a random byte of the request or the response.
func (s *storm) breakOff(ctx context.Context, who tenant, r *rand.Rand) ([]byte, error) {
	conn, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	body := configMap(who, "never", 8<<10)
	request := fmt.Sprintf("POST %s?dryRun=All HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", who.path("configmaps"), who.token, len(body), body)
	if r.IntN(2) == 0 {
		request = fmt.Sprintf("GET %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer %s\r\nAccept-Encoding: %s\r\n\r\n", who.path("configmaps")+oneOf(r, "", "?watch=true"), who.token, oneOf(r, "gzip", "identity"))
	}
	if r.IntN(2) == 0 {
		_, err := io.WriteString(conn, request[:r.IntN(len(request))])
		return nil, err
	}
	if _, err := io.WriteString(conn, request); err != nil {
		return nil, err
	}
	var all bytes.Buffer
	if _, err = io.CopyN(&all, conn, int64(r.IntN(64<<10))); err == io.EOF {
		err = nil
	}
	if raw, ok := conn.(*tls.Conn); ok && r.IntN(2) == 0 { // without TLS's close_notify
		_ = raw.NetConn().(*net.TCPConn).SetLinger(0)
		raw.NetConn().Close()
	}
	return all.Bytes(), err
}

// timeout sends a request whose deadline passes in the server.
func (s *storm) timeout(ctx context.Context, who tenant, r *rand.Rand) ([]byte, error) {
	path := who.path("configmaps") + "?timeout=" + oneOf(r, "1ns", "1ms", "3ms")
	method, body := "GET", ""
	if r.IntN(2) == 0 {
		method, path, body = "POST", path+"&dryRun=All", configMap(who, "late", 16<<10)
	}
	code, got, err := s.send(ctx, who, method, path, body, map[string]string{"Content-Type": "application/json"})
	return fine(code, got, err, http.StatusOK, http.StatusCreated, http.StatusGatewayTimeout, http.StatusInternalServerError)
}
