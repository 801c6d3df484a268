package auth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/server/options/authenticationconfig/metrics"
	"k8s.io/apiserver/pkg/util/filesystem"
	"k8s.io/klog/v2"
	kubeauthenticator "k8s.io/kubernetes/pkg/kubeapiserver/authenticator"
)

// reloadInterval is how often a configuration file is read even without a file system event. updateTimeout limits how
// long issuers may take to respond. After that the update fails, and the next check retries it.
const (
	reloadInterval = time.Minute
	updateTimeout  = time.Minute
)

// reloader applies changes of an authentication configuration, by the rules of kubernetes
// pkg/kubeapiserver/options/authentication.go. It belongs to the goroutine that calls run.
type reloader struct {
	file     string
	serverID string
	issuers  []string // of service accounts, which no configured issuer may have
	codecs   serializer.CodecFactory
	update   func(context.Context, *apiserver.AuthenticationConfiguration) error

	anonymous *apiserver.AnonymousAuthConfig // must not change
	seen      string                         // the last content that was applied or is invalid
}

func newReloader(file string, config kubeauthenticator.Config, update func(context.Context, *apiserver.AuthenticationConfiguration) error) *reloader {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	metrics.RegisterMetrics()
	metrics.RecordAuthenticationConfigLastConfigInfo(config.APIServerID, config.AuthenticationConfigData)
	return &reloader{
		file: file, serverID: config.APIServerID, issuers: config.ServiceAccountIssuers, update: update,
		codecs:    serializer.NewCodecFactory(scheme, serializer.EnableStrict),
		anonymous: config.AuthenticationConfig.DeepCopy().Anonymous,
		seen:      config.AuthenticationConfigData,
	}
}

// run follows the file until ctx ends.
func (r *reloader) run(ctx context.Context) {
	filesystem.WatchUntil(ctx, reloadInterval, r.file, func() { r.check(ctx) },
		func(err error) { klog.ErrorS(err, "watching authentication config file") })
}

func (r *reloader) check(ctx context.Context) {
	data, err := os.ReadFile(r.file)
	if err != nil {
		r.failed(err, "failed to read authentication config file")
		return
	}
	if string(data) == r.seen {
		return
	}
	config, err := r.parse(data)
	if err != nil {
		r.failed(err, "failed to load authentication config")
		r.seen = string(data) // the same content would fail again
		return
	}
	updating, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	if err := r.update(updating, config); err != nil {
		r.failed(err, "failed to update authentication config")
		return // so that it is tried again
	}
	r.seen = string(data)
	klog.InfoS("reloaded authentication config")
	metrics.RecordAuthenticationConfigAutomaticReloadSuccess(r.serverID, r.seen)
}

func (r *reloader) failed(err error, what string) {
	klog.ErrorS(err, what)
	metrics.RecordAuthenticationConfigAutomaticReloadFailure(r.serverID)
}

func (r *reloader) parse(data []byte) (*apiserver.AuthenticationConfiguration, error) {
	if len(data) == 0 {
		return nil, errors.New("empty config data")
	}
	object, err := runtime.Decode(r.codecs.UniversalDecoder(), data)
	if err != nil {
		return nil, err
	}
	config, ok := object.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("expected AuthenticationConfiguration, got %T", object)
	}
	errs := validation.ValidateAuthenticationConfiguration(authenticationcel.NewDefaultCompiler(), config, r.issuers)
	if !reflect.DeepEqual(r.anonymous, config.Anonymous) {
		errs = append(errs, field.Forbidden(field.NewPath("anonymous"), "changed from initial configuration file"))
	}
	return config, errs.ToAggregate()
}
