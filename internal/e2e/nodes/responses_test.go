package nodes

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/larder-io/larder/internal/proctest"
)

//lint:file-ignore SA1019 Endpoints are deprecated, but kube-apiserver and its clients still write them.

// question is a request, as it is sent.
type question struct {
	line   string // method and target
	lines  string // more header lines, separated by bars
	body   string
	user   string // the user whose token is sent; "" is the administrator
	listen bool   // body is sent after an upgrade
}

func (q question) String() string {
	s := q.line
	for _, part := range []string{q.lines, q.body, q.user} {
		if part != "" {
			s += " " + fmt.Sprintf("%.60q", part)
		}
	}
	return s
}

const (
	spdyUpgrade = "Connection: Upgrade|Upgrade: SPDY/3.1|X-Stream-Protocol-Version: v4.channel.k8s.io"
	portUpgrade = "Connection: Upgrade|Upgrade: SPDY/3.1|X-Stream-Protocol-Version: portforward.k8s.io"
	webSocket   = "Connection: Upgrade|Upgrade: websocket|Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==|Sec-WebSocket-Version: 13|Sec-WebSocket-Protocol: "
)

// questions are valid and invalid requests that are proxied to nodes, pods and services.
func questions() []question {
	const pods, services, nodes = "/api/v1/namespaces/default/pods/", "/api/v1/namespaces/default/services/", "/api/v1/nodes/"
	var all []question
	add := func(lines string, texts ...string) {
		for _, text := range texts {
			all = append(all, question{line: text, lines: lines})
		}
	}
	for _, query := range []string{"", "?container=c", "?container=nosuch", "?tailLines=-1", "?tailLines=x", "?tailLines=1", "?sinceSeconds=0", "?sinceSeconds=5&sinceTime=2020-01-01T00:00:00Z", "?sinceTime=yesterday",
		"?limitBytes=0", "?limitBytes=3", "?previous=true", "?follow=maybe", "?stream=Stdout", "?stream=Other", "?tailLines=1&stream=Stdout", "?insecureSkipTLSVerifyBackend=true", "?pretty=1", "?timestamps=0", "?a=b"} {
		add("", "GET "+pods+"p/log"+query)
	}
	add("", "GET "+pods+"two/log", "GET "+pods+"two/log?container=d", "GET "+pods+"nosuch/log", "GET "+pods+"nowhere/log", "GET "+pods+"lost/log", "HEAD "+pods+"p/log", "POST "+pods+"p/log", "DELETE "+pods+"p/log", "GET "+pods+"p/log/x")
	add("Accept: application/json", "GET "+pods+"p/log", "GET "+pods+"nosuch/log")
	add("Accept: text/plain", "GET "+pods+"p/log", "GET "+pods+"nosuch/log")
	for _, sub := range []string{"exec?command=true&stdout=1", "attach?stdout=1", "portforward", "portforward?ports=80"} {
		add("", "GET "+pods+"p/"+sub, "POST "+pods+"p/"+sub, "PUT "+pods+"p/"+sub, "HEAD "+pods+"p/"+sub)
		add(spdyUpgrade, "POST "+pods+"nosuch/"+sub, "POST "+pods+"nowhere/"+sub)
		add(webSocket+"v5.channel.k8s.io", "GET "+pods+"nosuch/"+sub, "GET "+pods+"lost/"+sub)
		add(webSocket+"nosuch.channel.k8s.io", "GET "+pods+"p/"+sub)
	}
	for _, query := range []string{"", "?command=true", "?stdout=1", "?command=true&stdout=1&container=nosuch", "?command=true&stdout=1&stderr=1&tty=1", "?command=true&stdin=maybe"} {
		add(spdyUpgrade, "POST "+pods+"p/exec"+query, "POST "+pods+"two/exec"+query)
		add(webSocket+"v5.channel.k8s.io", "GET "+pods+"p/exec"+query)
	}
	add("Connection: Upgrade|Upgrade: SPDY/3.1|X-Stream-Protocol-Version: v9.channel.k8s.io", "POST "+pods+"p/exec?command=true&stdout=1")
	add("Connection: Upgrade|Upgrade: SPDY/3.1", "POST "+pods+"p/portforward")
	add("Connection: Upgrade|Upgrade: other", "POST "+pods+"p/exec?command=true&stdout=1", "GET "+pods+"app:{plain}/proxy/websocket")
	add(webSocket+"SPDY/3.1+portforward.k8s.io", "GET "+pods+"nosuch/portforward", "GET "+pods+"lost/portforward")
	for _, liar := range liars {
		name := "liar-" + liar.name
		add("", "GET "+pods+name+"/log", "GET "+nodes+name+"/proxy/healthz")
		add(spdyUpgrade, "POST "+pods+name+"/exec?command=true&stdout=1")
		add(portUpgrade, "POST "+pods+name+"/portforward")
		add(webSocket+"v4.channel.k8s.io", "GET "+pods+name+"/exec?command=true&stdout=1", "GET "+nodes+name+"/proxy/websocket")
		add(webSocket+"v5.channel.k8s.io", "GET "+pods+name+"/attach?stdout=1")
		add(webSocket+"SPDY/3.1+portforward.k8s.io", "GET "+pods+name+"/portforward")
	}
	for _, to := range []string{pods + "app:{plain}/proxy", pods + "https:app:{secure}/proxy", services + "web:named/proxy", services + "https:web:tls/proxy", services + "web:80/proxy", nodes + "n/proxy", nodes + "https:n:{secure}/proxy", nodes + "n:{plain}/proxy"} {
		add("", "GET "+to, "GET "+to+"/", "GET "+to+"/some/path/?a=b&c=%2F", "GET "+to+"/a%2Fb//c/../d", "HEAD "+to+"/x", "OPTIONS "+to+"/x", "GET "+to+"?path=/elsewhere", "TRACE "+to+"/x")
		all = append(all, question{line: "POST " + to + "/x", body: "some body"}, question{line: "PUT " + to + "/x", body: "put"}, question{line: "PATCH " + to + "/x", body: "{}", lines: "Content-Type: application/json"}, question{line: "DELETE " + to + "/x"})
	}
	const app, svc = pods + "app:{plain}/proxy", services + "web:named/proxy"
	add("", "GET "+app+"/headers", "GET "+app+"/trailers", "GET "+app+"/hints", "GET "+app+"/lines", "GET "+app+"/cut", "GET "+app+"/page", "GET "+svc+"/page", "GET "+app+"/self", "GET "+pods+"https:app:{secure}/proxy/self", "GET "+svc+"/self",
		"GET "+app+"/redirect?to=/there", "GET "+app+"/redirect?to=there", "GET "+app+"/redirect?to=http://elsewhere.example.com/x", "GET "+app+"/redirect?to=//elsewhere.example.com/x", "GET "+app+"/redirect?to=%3A", "GET "+svc+"/redirect?to=/there",
		"GET "+app+"/status/204", "GET "+app+"/status/304", "GET "+app+"/status/404", "GET "+app+"/status/500", "GET "+app+"/status/599", "GET "+app+"/status/999", "HEAD "+app+"/noise?n=100000", "GET "+app+"/noise?n=0")
	add("Accept-Encoding: gzip", "GET "+app+"/x", "GET "+app+"/page")
	add("X-Own: 1|X-Own: 2|Cookie: a=b|X-Forwarded-For: 203.0.113.1|Te: trailers|User-Agent: me|X-Remote-User: root|Impersonate-User: admin|Impersonate-Group: system:masters", "GET "+app+"/x", "GET "+svc+"/x")
	add("Connection: X-Own|X-Own: 1", "GET "+app+"/x")
	add("Expect: 100-continue", "GET "+app+"/x")
	add("", "GET "+app+"/lines HTTP/1.0", "GET "+pods+"p/log?container=c HTTP/1.0", "GET "+svc+"/page HTTP/1.0")
	all = append(all,
		question{line: "POST " + app + "/x", lines: "Transfer-Encoding: chunked|Trailer: X-Trail", body: "5\r\nabcde\r\n0\r\nX-Trail: t\r\n\r\n"},
		question{line: "POST " + app + "/x", lines: "Expect: 100-continue", body: "expected"},
		question{line: "GET " + app + "/websocket", lines: webSocket + "a, b", body: "\x81\x85\x00\x00\x00\x00hello\x88\x80\x00\x00\x00\x00", listen: true},
		question{line: "GET " + svc + "/websocket", lines: webSocket + "c", body: "\x81\x85\x00\x00\x00\x00hello\x88\x80\x00\x00\x00\x00", listen: true},
		question{line: "GET " + pods + "https:app:{secure}/proxy/websocket", lines: webSocket + "b", body: "\x81\x85\x00\x00\x00\x00hello\x88\x80\x00\x00\x00\x00", listen: true},
		question{line: "GET " + nodes + "n:{plain}/proxy/websocket", lines: webSocket + "b", body: "\x81\x85\x00\x00\x00\x00hello\x88\x80\x00\x00\x00\x00", listen: true},
	)
	add("", "GET "+pods+"nosuch/proxy/", "GET "+pods+"nowhere/proxy/", "GET "+pods+"loopback:{plain}/proxy/", "GET "+pods+"linklocal:{plain}/proxy/", "GET "+pods+"app:x:y:z/proxy/", "GET "+pods+"ftp:app:{plain}/proxy/", "GET "+pods+"app:1/proxy/", "GET "+pods+"app/proxy/",
		"GET "+services+"nosuch/proxy/", "GET "+services+"web/proxy/", "GET "+services+"web:nosuch/proxy/", "GET "+services+"web:81/proxy/", "GET "+services+"empty/proxy/", "GET "+services+"empty:80/proxy/", "GET "+services+"ftp:web:named/proxy/", "GET "+services+"loopback:80/proxy/",
		"GET "+nodes+"nosuch/proxy/", "GET "+nodes+"near/proxy/healthz", "GET "+nodes+"near:{plain}/proxy/", "GET "+nodes+"https:near:{secure}/proxy/", "GET "+nodes+"linklocal/proxy/", "GET "+nodes+"n:x:y:z/proxy/", "GET "+nodes+"n:1/proxy/", "GET "+nodes+"nameless/proxy/", "GET "+nodes+"addressless/proxy/", "GET "+nodes+"addressless/proxy/x")
	for _, path := range []string{"/pods", "/metrics", "/metrics/cadvisor", "/stats/summary", "/healthz", "/configz", "/exec/default/p/c", "/run/default/p/c", "/logs/", "/containerLogs/default/p/c", "/spec", "/checkpoint/default/p/c"} {
		for _, user := range []string{reader, "nobody-token", "fine-token"} {
			all = append(all, question{line: "GET " + nodes + "n/proxy" + path, user: user})
		}
	}
	for _, sub := range []string{"log", "exec?command=true&stdout=1", "attach?stdout=1", "portforward?ports=80", "proxy/"} {
		for _, user := range []string{reader, "nobody-token", "creator-token"} {
			all = append(all, question{line: "GET " + pods + "p/" + sub, user: user, lines: webSocket + "v4.channel.k8s.io"}, question{line: "POST " + pods + "nosuch/" + sub, user: user, lines: spdyUpgrade}, question{line: "GET " + pods + "p/" + sub, user: user})
		}
	}
	return all
}

// liars are kubelets that send responses that no real kubelet sends.
var liars = []struct {
	name, says             string
	plain, foreign, absent bool
}{
	{name: "plain", plain: true, says: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes"},
	{name: "foreign", foreign: true, says: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes"},
	{name: "absent", absent: true},
	{name: "mute"},
	{name: "garbage", says: "HELO mail.example.com\r\n\r\n"},
	{name: "noise", says: "\x00\x01\x02\xff\xfe\r\n\r\n"},
	{name: "badcode", says: "HTTP/1.1 9x9 Strange\r\n\r\n"},
	{name: "short", says: "HTTP/1.1 200"},
	{name: "badheader", says: "HTTP/1.1 200 OK\r\nno colon\r\n\r\n"},
	{name: "redirect", says: "HTTP/1.1 302 Found\r\nLocation: https://{outward}:{secure}/secret\r\nContent-Length: 0\r\n\r\n"},
	{name: "redirect-post", says: "HTTP/1.1 307 Temporary Redirect\r\nLocation: https://{outward}:{secure}/secret\r\nContent-Length: 0\r\n\r\n"},
	{name: "ok", says: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes"},
	{name: "denies", says: "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nX-Own: 1\r\nContent-Length: 3\r\n\r\nno\n"},
	{name: "status", says: "HTTP/1.1 422 Unprocessable Entity\r\nContent-Type: application/json\r\nContent-Length: 92\r\n\r\n{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\"message\":\"from the kubelet\",\"code\":422}"},
	{name: "fails", says: "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 5\r\n\r\noops\n"},
	{name: "other", says: "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\nbytes"},
	{name: "unsaid", says: "HTTP/1.1 101 Switching Protocols\r\n\r\nbytes"},
	{name: "cut", says: "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut"},
	{name: "badchunk", says: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"},
	{name: "twolengths", says: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nyes!"},
	{name: "old", says: "HTTP/1.0 200 OK\r\n\r\nold"},
	{name: "hints", says: "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes"},
}

// stage is the cluster for the questions.
type stage struct {
	*cluster
	app   *app
	masks *strings.Replacer // text that varies between runs
	fill  *strings.Replacer // replaces text in braces
}

func newStage(t *testing.T) *stage {
	t.Helper()
	address := needOutward(t)
	p := newPKI(t)
	s := &stage{app: newApp(t, p)}
	s.cluster = newClusterOf(t, p, "--authorization-mode=RBAC", "--advertise-address=192.0.2.1")
	k := s.terminalPod(t, "p", nil)
	k.run(t, "default/p/c", "printf", "one\ntwo\n")
	k.run(t, "default/two/d", "echo", "of two")
	for _, key := range []string{"default/p/c", "default/two/d"} {
		proctest.Eventually(t, "the log is printed", func() error { return k.over(key) })
	}
	s.pod(t, "two", "node-p", nil, "c", "d")
	s.node(t, "n", address, k.port)
	s.node(t, "near", "127.0.0.1", k.port)
	s.node(t, "linklocal", "169.254.0.1", k.port)
	s.node(t, "nameless", "nosuch.invalid", k.port)
	s.addressless(t)
	s.pod(t, "nowhere", "", nil, "c")
	s.pod(t, "lost", "nosuch", nil, "c")
	placed := func(name, ip string) {
		s.pod(t, name, "node-p", func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: int32(s.app.plainPort)}}
			p.Status.PodIP, p.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
		}, "c")
	}
	placed("app", address)
	placed("loopback", "127.0.0.1")
	placed("linklocal", "169.254.0.1")
	s.service(t, "web", address)
	s.service(t, "empty", "")
	s.service(t, "loopback", "127.0.0.1")
	masks := []string{fmt.Sprintf(":%d", k.port), ":KUBELET", fmt.Sprintf(":%d", s.app.plainPort), ":PLAIN", fmt.Sprintf(":%d", s.app.securePort), ":SECURE", address, "OUTWARD"}
	s.fill = strings.NewReplacer("{plain}", fmt.Sprint(s.app.plainPort), "{secure}", fmt.Sprint(s.app.securePort), "{outward}", address)
	for _, liar := range liars {
		port := proctest.Port(t)
		if !liar.absent {
			var config *tls.Config
			if signer := p; !liar.plain {
				if liar.foreign {
					signer = newPKI(t)
				}
				config = &tls.Config{Certificates: []tls.Certificate{signer.serving(t)}}
			}
			port = (&script{says: s.fill.Replace(liar.says), deaf: liar.plain}).serve(t, config).port
		}
		name := "liar-" + liar.name
		s.node(t, name, address, port)
		s.pod(t, name, name, nil, "c")
		masks = append(masks, fmt.Sprintf(":%d", port), ":LIAR")
	}
	s.masks = strings.NewReplacer(masks...)
	s.rights(t)
	return s
}

// addressless creates a node without an address.
func (s *stage) addressless(t *testing.T) {
	created(t, func(ctx context.Context) error {
		_, err := s.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "addressless"}}, metav1.CreateOptions{})
		return err
	})
}

// service creates a service with an endpoint at address, or with none if address is "".
func (s *stage) service(t *testing.T, name, address string) {
	t.Helper()
	plain, secure := int32(s.app.plainPort), int32(s.app.securePort)
	created(t, func(ctx context.Context) error {
		_, err := s.client.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Name: "named", Port: 80, TargetPort: intstr.FromInt32(plain)}, {Name: "tls", Port: 443, TargetPort: intstr.FromInt32(secure)},
		}}}, metav1.CreateOptions{})
		return err
	})
	endpoints := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: name}} //nolint:staticcheck // the proxy reads this type
	if address != "" {
		endpoints.Subsets = []corev1.EndpointSubset{{ //nolint:staticcheck // the proxy reads this type
			Addresses: []corev1.EndpointAddress{{IP: address}}, Ports: []corev1.EndpointPort{{Name: "named", Port: plain}, {Name: "tls", Port: secure}}, //nolint:staticcheck // the proxy reads this type
		}}
	}
	if address == "127.0.0.1" { // validation rejects it
		endpoints.Subsets = nil
	}
	created(t, func(ctx context.Context) error {
		_, err := s.client.CoreV1().Endpoints("default").Create(ctx, endpoints, metav1.CreateOptions{})
		return err
	})
}

// rights creates the rights of three users: one may get, one may create, and one has the node subresources that
// kubelets distinguish.
func (s *stage) rights(t *testing.T) {
	t.Helper()
	for user, rules := range map[string][]rbacv1.PolicyRule{
		"reader":  {{APIGroups: []string{""}, Resources: []string{"pods", "pods/*"}, Verbs: []string{"get"}}},
		"creator": {{APIGroups: []string{""}, Resources: []string{"pods/*"}, Verbs: []string{"create"}}},
		"fine":    {{APIGroups: []string{""}, Resources: []string{"nodes/metrics", "nodes/healthz", "nodes/pods", "nodes/configz", "nodes/stats"}, Verbs: []string{"get"}}},
	} {
		s.grant(t, user, rules...)
	}
}

// grant gives rights to a user, and waits until they apply.
func (c *cluster) grant(t *testing.T, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	created(t, func(ctx context.Context) error {
		_, err := c.client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: rules}, metav1.CreateOptions{})
		return err
	})
	created(t, func(ctx context.Context) error {
		_, err := c.client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: user, APIGroup: rbacv1.GroupName},
			Subjects: []rbacv1.Subject{{Kind: "User", Name: user, APIGroup: rbacv1.GroupName}},
		}, metav1.CreateOptions{})
		return err
	})
	resource, subresource, _ := strings.Cut(rules[0].Resources[0], "/")
	asked := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: rules[0].Verbs[0], Namespace: "default", Resource: resource, Subresource: subresource},
	}}
	proctest.Eventually(t, user+" has the rights", func() error {
		found, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), asked, metav1.CreateOptions{})
		if err == nil && !found.Status.Allowed {
			err = errors.New(found.Status.Reason)
		}
		return err
	})
}

// responses returns the responses of two servers to a request. The first one is want if stock is nil. Some responses
// never end. If the responses differ because a server was too slow, it asks again, and waits longer.
func (s *stage) responses(stock *server, want string, q question) [2]string {
	for limit := 20 * time.Second; ; limit *= 2 {
		first, late := want, false
		if stock != nil {
			first, late = s.ask(stock, q, limit)
		}
		second, tooLate := s.ask(s.server, q, limit)
		if first == second || !late && !tooLate || limit > proctest.Patience || excused(q.String()) != "" {
			return [2]string{first, second}
		}
	}
}

// ask sends a request to a server and returns the response: status line, header and body, without values that vary.
// late says that the response was not complete within limit.
func (s *stage) ask(to *server, q question, limit time.Duration) (text string, late bool) {
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", to.port), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return "error: " + err.Error() + "\n", false
	}
	defer conn.Close()
	deadline := time.Now().Add(limit)
	_ = conn.SetDeadline(deadline)
	user := q.user
	if user == "" {
		user = admin
	}
	line := s.fill.Replace(q.line)
	if !strings.HasSuffix(line, " HTTP/1.0") {
		line += " HTTP/1.1"
	}
	text = line + "\r\nHost: larder.example.com\r\nAuthorization: Bearer " + user + "\r\n"
	for line := range strings.SplitSeq(q.lines, "|") {
		if line != "" {
			text += line + "\r\n"
		}
	}
	if q.body != "" && !q.listen && !strings.Contains(q.lines, "chunked") {
		text += fmt.Sprintf("Content-Length: %d\r\n", len(q.body))
	}
	first, then := q.body, ""
	if q.listen {
		first, then = "", q.body
	}
	if _, err := io.WriteString(conn, text+"\r\n"+first); err != nil {
		return "error: " + err.Error() + "\n", time.Now().After(deadline)
	}
	method, _, _ := strings.Cut(q.line, " ")
	text = s.steady(to, readResponses(conn, method, then))
	return text, time.Now().After(deadline)
}

// readResponses reads all responses to a request. It sends then after the connection was upgraded.
func readResponses(conn net.Conn, method, then string) string {
	in := bufio.NewReader(conn)
	var out strings.Builder
	for {
		resp, err := http.ReadResponse(in, &http.Request{Method: method})
		if err != nil {
			fmt.Fprintf(&out, "error: %v\n", err)
			return out.String()
		}
		fmt.Fprintf(&out, "%s\n", resp.Status)
		var lines []string
		for name, values := range resp.Header {
			if name == "Date" || name == "Connection" || strings.HasPrefix(name, "X-Kubernetes-Pf-") {
				continue
			}
			if name == "Audit-Id" {
				values = []string{fmt.Sprint(len(values))}
			}
			lines = append(lines, fmt.Sprintf("%s: %q", name, values))
		}
		slices.Sort(lines)
		for _, line := range lines {
			fmt.Fprintln(&out, line)
		}
		if resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		var from io.Reader = resp.Body
		if resp.StatusCode == http.StatusSwitchingProtocols {
			from = in
			_, _ = io.WriteString(conn, then)
		}
		body, err := io.ReadAll(io.LimitReader(from, 1<<20))
		resp.Body.Close()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errors.New("silence")
		}
		if broken := len(body) == 0 || resp.ContentLength > 0; resp.StatusCode == http.StatusOK && broken && errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Sprintf("error: %v\n", err) // upstream's proxy sends the header unless it reads the broken body within 200 ms
		}
		fmt.Fprintf(&out, "%q %v\n", body, err)
		if len(resp.Trailer) > 0 {
			fmt.Fprintf(&out, "trailer %v\n", resp.Trailer)
		}
		return out.String()
	}
}

var unsteady = []struct {
	what *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`127\.0\.0\.1:\d+->`), "127.0.0.1:CLIENT->"},
	{regexp.MustCompile(`OUTWARD:\d+->`), "OUTWARD:CLIENT->"},
	// Some machines have no resolver, or one that does not respond.
	{regexp.MustCompile(`lookup nosuch\.invalid[^"\\]*`), "lookup nosuch.invalid on RESOLVER: no such host"},
}

func (s *stage) steady(to *server, text string) string {
	text = s.masks.Replace(text)
	text = strings.ReplaceAll(text, fmt.Sprintf(":%d", to.port), ":SERVER")
	for _, u := range unsteady {
		text = u.what.ReplaceAllString(text, u.by)
	}
	return text
}

const goldenFile = "testdata/responses.txt"

// TestRequestsToNodesMatchKubeAPIServer compares Larder's responses with those of kube-apiserver.
func TestRequestsToNodesMatchKubeAPIServer(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var stock *server
	if *stockBinary != "" {
		stock = s.startStock(t)
	} else if *rewrite {
		t.Fatal("-rewrite needs -stock")
	}
	want := readGolden(t)
	if stock != nil {
		want = make(map[string]string)
	}
	var golden strings.Builder
	differ := 0
	all := questions()
	responses := make([][2]string, len(all))
	var g errgroup.Group
	g.SetLimit(8)
	for i, q := range all {
		g.Go(func() error {
			responses[i] = s.responses(stock, want[q.String()], q)
			return nil
		})
	}
	_ = g.Wait()
	for i, q := range all {
		name, got := q.String(), responses[i][1]
		if stock != nil {
			want[name] = responses[i][0]
			fmt.Fprintf(&golden, "> %s\n%s\n", name, want[name])
		}
		expected, known := want[name]
		if !known {
			t.Errorf("%s: no response is recorded", name)
			continue
		}
		reason := excused(name)
		switch same := got == expected; {
		case !same && reason == "":
			if differ++; differ < 60 {
				t.Errorf("%s\nstock:\n%slarder:\n%s", name, expected, got)
			}
		case same && reason != "":
			t.Errorf("%s: no longer differs (%s): remove it from the list", name, reason)
		}
	}
	t.Logf("%d requests, %d responses differ", len(all), differ)
	if *rewrite {
		write(t, goldenFile, golden.String())
	}
}

// differences has the intended differences, and the reason of each.
var differences = []struct {
	question *regexp.Regexp
	reason   string
}{
	{
		regexp.MustCompile(`^GET \S+/liar-(other|unsaid)/log`),
		"kube-apiserver sends 101 and then nothing; Larder closes the connection",
	},
	{
		regexp.MustCompile(`Trailer: X-Trail`),
		"kube-apiserver announces a client's trailers to a pod and sends them without values; Larder does not announce them",
	},
}

func excused(name string) string {
	for _, d := range differences {
		if d.question.MatchString(name) {
			return d.reason
		}
	}
	return ""
}

func readGolden(t *testing.T) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(goldenFile)
	if err != nil && !*rewrite && *stockBinary == "" {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for part := range strings.SplitSeq(string(raw), "\n\n") {
		name, text, _ := strings.Cut(strings.TrimPrefix(part, "> "), "\n")
		all[name] = text + "\n"
	}
	return all
}
