package integration

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// home is the import path below which the tests are compiled.
const home = "github.com/larder-io/larder/internal/integration/kubernetes"

// moved are the directories of k8s.io/kubernetes that are compiled below home.
var moved = []string{"cmd/kube-apiserver/app/testing", "test/integration"}

// edit replaces the first match of pattern in the file at path, or all matches in all files below it.
type edit struct{ path, pattern, by string }

func edits(api string) []edit {
	const (
		server, etcd = "cmd/kube-apiserver/app/testing/testserver.go", "test/integration/etcd/server.go"
		rbac         = "test/integration/auth/rbac_test.go"
		discovery    = "test/integration/apiserver/discovery/"
		started      = `external.Start(tCtx, t, nil, opts, certDir, listener, featureGate, func() {})`
	)
	return []edit{
		{server, `\n\tcompletedOptions, err := s\.Complete\(tCtx\)\n`, `
	if os.Getenv("KAS") != "" {
		if instanceOptions.StorageVersionWrapFunc != nil || instanceOptions.BinaryVersion != "" {
			external.Skip(t)
		}
		cfg, stop, err := external.StartOptions(t, s, result.TmpDir, fs, customFlags, featureGate, instanceOptions.EnableCertAuth, !instanceOptions.SkipHealthzCheck)
		if err != nil {
			return result, err
		}
		old := tearDown
		result.ClientConfig, result.ServerOpts, result.EtcdStoragePrefix = cfg, s, storageConfig.Prefix
		result.TearDownFn = func() { stop(); old() }
		result.EtcdClient, _, err = GetEtcdClients(storageConfig.Transport)
		if err == nil {
			result.TearDownFn = func() { stop(); old(); result.EtcdClient.Close() }
		}
		return result, err
	}
$0`},
		{"test/integration/framework/test_server.go", `\n\tcompletedOptions, err := opts\.Complete\(ctx\)\n`, `
	if os.Getenv("KAS") != "" {
		return external.Start(ctx, t, setup.ModifyServerConfig, opts, certDir, listener, featureGate, tearDownFn)
	}
$0`},
		// Tests that only enable group versions do this by --runtime-config, which must not name a version that
		// does not exist.
		{"test/integration/apiserver/apiserver_test.go", `(?s)\t\tModifyServerConfig: func\(config \*controlplane\.Config\) \{\n\t\t\tif len\(groupVersions\) > 0.*?\n\t\}\)\n`, `		ModifyServerRunOptions: func(opts *options.ServerRunOptions) {
			for _, gv := range groupVersions {
				if gv.String() != "flowcontrol.apiserver.k8s.io/v1alpha1" {
					opts.APIEnablement.RuntimeConfig.Set(gv.String() + "=true")
				}
			}
			for _, r := range resources {
				opts.APIEnablement.RuntimeConfig.Set(r.GroupVersion().String() + "/" + r.Resource + "=true")
			}
		},
	})
`},
		// The server's RBAC authorizer sees roles a moment after they were written.
		{rbac, `\[\]string\{"AlwaysDeny"\}`, `[]string{"RBAC"}`},
		{rbac, `var rbacAuthz authorizer\.Authorizer\n`, ""},
		{rbac, `rbacAuthz, tearDownAuthorizerFn = newRBACAuthorizer\(t, config\)\n`, ""},
		{rbac, `config\.ControlPlane\.Generic\.Authorization\.Authorizer = unionauthz\.New\(config\.ControlPlane\.Generic\.Authorization\.Authorizer, rbacAuthz\)\n`, ""},
		{rbac, `\t\t\tpreviousResourceVersion := make\(map\[string\]float64\)\n`, "\t\t\ttime.Sleep(time.Second)\n$0"},
		{rbac, `\nfunc TestRBACContextContamination\(t \*testing\.T\) \{\n`, "$0\texternal.Skip(t)\n"},
		{rbac, `\nimport \(\n`, "$0\t\"time\"\n"},
		// Tests set the host names of their servers.
		{"test/integration/", `SetHostnameFuncForTests\(("[^"]*")\)`, `SetHostnameFuncForTests(external.Hostname($1))`},
		// The limits of the fast packages are too short for a busy machine.
		{"test/integration/", `\bwait\.ForeverTestTimeout\b`, `(10 * wait.ForeverTestTimeout)`},
		{"test/integration/events/", `\b20\*time\.Second\b`, `5*time.Minute`},
		{"test/integration/namespace/", `\b60\*time\.Second\b`, `5*time.Minute`},
		{"test/integration/apiserver/portforward/", `\b5\*time\.Second\b`, `5*time.Minute`},
		{discovery, `\b[125]\*time\.Minute\b`, `10*time.Minute`},
		{discovery, `\b30\*time\.Second\b`, `5*time.Minute`},
		{discovery, `\b200\*time\.Millisecond, time\.Second\b`, `200*time.Millisecond, 5*time.Minute`},
		// etcd 3.7 has renamed the flag.
		{"test/integration/", `--experimental-watch-progress`, `--watch-progress`},
		// The tests that compare the contents of etcd start a server without the framework.
		{etcd, `(?s)\tcompletedOptions, err := opts\.Complete\(tCtx\)\n.*?\t// we make lots of requests, don't be slow\n`, `	rawClient, kvClient, err := integration.GetEtcdClients(opts.Etcd.StorageConfig.Transport)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kvClient.Delete(context.Background(), "/registry/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	_, kubeClientConfig, stopExternal := ` + started + "\n"},
		{etcd, `(?s)\t\tprepared, err := kubeAPIServer\.PrepareRun\(\)\n.*?\t\}\(\)\n`, "\t\t<-tCtx.Done()\n\t\tstopExternal()\n\t}()\n"},
		// The reference for stored objects is test data of the module k8s.io/api.
		{"test/integration/", `\.\./\.\./\.\./staging/src/k8s\.io/api/`, api + "/"},
	}
}

// overlay writes a file for go build's -overlay below dir, and returns its name and the directory
// of the module k8s.io/kubernetes.
func overlay(t *testing.T, dir string) (file, kubernetes string) {
	kubernetes = command(t, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	here, err := os.Getwd()
	must(t, err)
	replace := map[string]string{}
	add := func(path, from string, text []byte) {
		if text != nil {
			from = filepath.Join(dir, strconv.Itoa(len(replace))+".go")
			must(t, os.WriteFile(from, text, 0o600))
		}
		replace[filepath.Join(here, "kubernetes", path)] = from
	}
	ours, err := filepath.Glob("testdata/external/*.go")
	must(t, err)
	for _, path := range ours {
		add("external/"+filepath.Base(path), filepath.Join(here, path), nil)
	}
	all := edits(command(t, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/api"))
	used := make([]bool, len(all))
	for _, top := range moved {
		must(t, filepath.WalkDir(filepath.Join(kubernetes, top), func(from string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			path, err := filepath.Rel(kubernetes, from)
			if err != nil || !strings.HasSuffix(path, ".go") {
				add(path, from, nil)
				return err
			}
			text, err := os.ReadFile(from)
			if err == nil {
				add(path, from, edited(path, text, all, used))
			}
			return err
		}))
	}
	for i, e := range all {
		if !used[i] {
			t.Fatalf("no file at or below %s matches %s", e.path, e.pattern)
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	must(t, err)
	file = filepath.Join(dir, "overlay.json")
	must(t, os.WriteFile(file, text, 0o600))
	return file, kubernetes
}

var (
	movedImports = regexp.MustCompile(`"k8s\.io/kubernetes/(` + strings.Join(moved, "|") + `)`)
	anyImport    = regexp.MustCompile(`(?m)^(\t)(?:[a-z0-9]+ )?"([^"\n]+)"$`)
)

// edited returns the text of a file as it is compiled below home.
func edited(path string, text []byte, all []edit, used []bool) []byte {
	before := text
	for i, e := range all {
		at := regexp.MustCompile(e.pattern)
		if strings.HasPrefix(path, e.path) && at.Match(text) {
			end := len(text)
			if path == e.path {
				end = at.FindIndex(text)[1]
			}
			text, used[i] = append(at.ReplaceAll(text[:end:end], []byte(e.by)), text[end:]...), true
		}
	}
	if !bytes.Equal(before, text) {
		if bytes.Contains(text, []byte("external.")) {
			text = bytes.Replace(text, []byte("\nimport (\n"), []byte("\nimport (\n\t\""+home+"/external\"\n"), 1)
		}
		text = removeUnusedImports(text)
	}
	return movedImports.ReplaceAll(text, []byte(`"`+home+`/$1`))
}

// removeUnusedImports removes the imports that only deleted code used.
func removeUnusedImports(text []byte) []byte {
	return anyImport.ReplaceAllFunc(text, func(line []byte) []byte {
		fields := strings.Fields(string(line))
		name := fields[0]
		if len(fields) == 1 {
			name = filepath.Base(strings.Trim(name, `"`))
		}
		// The last element of other paths may differ from the package's name.
		if !regexp.MustCompile(`^[a-z]+$`).MatchString(name) || regexp.MustCompile(`\b`+name+`\.`).Match(text) {
			return line
		}
		return nil
	})
}

// command returns the output of a command.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
