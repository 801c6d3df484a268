package relay

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/transport"
)

// errIdentity says that a request must not use the relay's credential.
var errIdentity = errors.New("relay: the user cannot be impersonated")

// hopByHop are fields of one connection, and fields that the transport writes.
var hopByHop = [...]string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade", "Host", "Content-Length", "Expect",
}

// tokenProtocol begins the websocket subprotocol that holds a token.
const tokenProtocol = "base64url.bearer.authorization.k8s.io."

// endToEnd returns the fields of sent that are forwarded, without the fields that name the user. Names are canonical.
func endToEnd(sent http.Header) http.Header {
	out := make(http.Header, len(sent))
	for name, values := range sent {
		if !namesUser(name) && !slices.Contains(hopByHop[:], name) && !httpguts.HeaderValuesContainsToken(sent["Connection"], name) {
			out[name] = values
		}
	}
	if protocols := out["Sec-Websocket-Protocol"]; protocols != nil {
		delete(out, "Sec-Websocket-Protocol")
		if rest := withoutToken(protocols); len(rest) > 0 {
			out.Set("Sec-Websocket-Protocol", strings.Join(rest, ", "))
		}
	}
	return out
}

// asSent is endToEnd plus the fields by which the client names its user, exactly as they were sent. They stay even if
// the client lists them in Connection, so that the upstream receives the user that was authorized.
func asSent(sent http.Header) http.Header {
	out := endToEnd(sent)
	for name, values := range sent {
		if name == "Authorization" || impersonates(name) || name == "Sec-Websocket-Protocol" {
			out[name] = values
		}
	}
	return out
}

// namesUser reports whether a field holds credentials, impersonates, or is a front proxy's.
func namesUser(name string) bool {
	return name == "Authorization" || impersonates(name) || strings.HasPrefix(name, "X-Remote-")
}

func impersonates(name string) bool { return strings.HasPrefix(name, "Impersonate-") }

// withoutToken returns the websocket subprotocols that hold no token.
func withoutToken(protocols []string) (rest []string) {
	for _, line := range protocols {
		for protocol := range strings.SplitSeq(line, ",") {
			if protocol = strings.TrimSpace(protocol); protocol != "" && !strings.HasPrefix(strings.ToLower(protocol), tokenProtocol) {
				rest = append(rest, protocol)
			}
		}
	}
	return rest
}

// hasToken reports whether a request may have been authenticated by a token.
func hasToken(sent http.Header) bool {
	protocols := sent["Sec-Websocket-Protocol"]
	return len(sent["Authorization"]) > 0 || strings.Contains(strings.ToLower(strings.Join(protocols, ",")), tokenProtocol)
}

// impersonate returns a transport that has the upstream serve requests as u.
func impersonate(u user.Info, next http.RoundTripper) http.RoundTripper {
	return transport.NewImpersonatingRoundTripper(transport.ImpersonationConfig{
		UserName: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: u.GetExtra(),
	}, next)
}

// impersonatedOnly is a transport with the relay's credential. It refuses every request that does not
// impersonate exactly one user, or has a credential of its own.
type impersonatedOnly struct{ next http.RoundTripper }

func (i impersonatedOnly) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := checkImpersonation(req.Header); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	return i.next.RoundTrip(req)
}

// checkImpersonation returns an error unless the upstream reads from header the user that it was written
// for. HTTP removes spaces around values: a user "root " would become "root".
func checkImpersonation(header http.Header) error {
	if users := header[transport.ImpersonateUserHeader]; len(users) != 1 || users[0] == "" {
		return fmt.Errorf("%w: %d names", errIdentity, len(users))
	}
	for name, values := range header {
		if name != textproto.CanonicalMIMEHeaderKey(name) || namesUser(name) && !impersonates(name) {
			return fmt.Errorf("%w: header %q", errIdentity, name)
		}
		bad := func(value string) bool {
			return textproto.TrimString(value) != value || !httpguts.ValidHeaderFieldValue(value)
		}
		if impersonates(name) && slices.ContainsFunc(values, bad) {
			return fmt.Errorf("%w: %s %q cannot be sent", errIdentity, name, values)
		}
	}
	return nil
}
