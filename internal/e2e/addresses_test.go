package e2e_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

// TestClientsInServicesGetTheServiceAddress checks that discovery names the address of the kubernetes service to
// clients in the service range, as kube-apiserver does. With -stock, the requests are also sent to kube-apiserver.
func TestClientsInServicesGetTheServiceAddress(t *testing.T) {
	p := newPlane(t)
	programs := []*member{p.member(false, "", proctest.Port(t))}
	if *stockBinary != "" {
		programs = append(programs, p.member(true, "", proctest.Port(t)))
	}
	const outside = `{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"HOST"}`
	const inside = outside + `,{"clientCIDR":"10.0.0.0/24","serverAddress":"10.0.0.1:443"}`
	host := regexp.MustCompile(`"serverAddress":"(127\.0\.0\.1|192\.0\.2\.1):\d{4,}"`)
	for _, m := range programs {
		m.start()
		for _, c := range []struct{ path, header, client, want string }{
			{"/api", "X-Forwarded-For", "", outside},
			{"/api", "X-Forwarded-For", "10.0.1.7", outside},
			{"/api", "X-Forwarded-For", "10.0.0.7", inside},
			{"/api/", "X-Forwarded-For", "10.0.0.7, 192.0.2.7", inside},
			{"/api", "X-Forwarded-For", "::ffff:10.0.0.7", inside},
			{"/api", "X-Forwarded-For", "192.0.2.7, 10.0.0.7", outside},
			{"/api", "X-Real-Ip", "10.0.0.255", inside},
		} {
			header := make(http.Header)
			if c.client != "" {
				header.Set(c.header, c.client)
			}
			code, got := m.ask(http.MethodGet, c.path, "", header)
			got = host.ReplaceAllString(strings.Map(func(r rune) rune {
				if r == '\n' || r == ' ' {
					return -1
				}
				return r
			}, got), `"serverAddress":"HOST"`)
			if want := c.want + "]}"; code != http.StatusOK || got != want {
				t.Errorf("%s %v: %d\n got %s\nwant %s", c.path, header, code, got, want)
			}
		}
		if err := m.Terminate(t); err != nil {
			t.Error(err)
		}
	}
}
