package statuspage

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"net/http"
	"strings"

	"github.com/larder-io/larder/httpapi/costs"
)

var (
	// assets are the parts of the shell.
	//
	//go:embed assets
	assets embed.FS
)

// shell is the page without its data: one answer with its style, script and icon in it. A browser
// might not get them by requests of their own: clients that are not authenticated need another
// HTTP/2 connection for each request (apiserver pkg/endpoints/filters/authentication.go), and
// Chromium gives up requests that it was about to send on the one that ends.
type shell struct {
	html   string
	policy string // Content-Security-Policy
}

func newShell() *shell {
	style, script, icon := asset("style.css"), asset("app.js"), asset("icon.svg")
	return &shell{
		html: strings.NewReplacer(
			`<link rel="stylesheet" href="style.css">`, "<style>"+style+"</style>",
			`<script src="app.js"></script>`, "<script>"+script+"</script>",
			`"icon.svg"`, `"data:image/svg+xml;base64,`+base64.StdEncoding.EncodeToString([]byte(icon))+`"`,
		).Replace(asset("index.html")),
		// The page runs its own script and loads its own data and nothing else, makes HTML of no
		// text, and no other page shows it.
		policy: "default-src 'none'; script-src " + hash(script) + "; style-src " + hash(style) + "; img-src data:; connect-src 'self'; " +
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
	}
}

func asset(name string) string {
	text, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic(err) // it is part of the program
	}
	return string(text)
}

// hash returns what a policy calls a script or style by.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// Public reports whether everybody may request path by method, because it is the page without its
// data.
func Public(method, path string) bool {
	return (path == Path || path+"/" == Path) && (method == http.MethodGet || method == http.MethodHead)
}

// secure sets the headers that keep other sites out.
func (s *shell) secure(h http.Header) {
	h.Set("Content-Security-Policy", s.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// ServeHTTP answers with the shell, or says where it is.
func (s *shell) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	s.secure(w.Header())
	switch {
	case req.Method != http.MethodGet && req.Method != http.MethodHead:
		costs.Fail(w, notSupported(req.Method))
	case req.URL.Path != Path:
		w.Header().Set("Location", Path)
		w.WriteHeader(http.StatusMovedPermanently)
	default:
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(s.html)) // an error: the client has left
	}
}
