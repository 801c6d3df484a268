package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Tenants is the group of the users that are no administrators: they may read, and flow
// control bounds them once [Target.AllowTenants] has been called.
const Tenants = "bench-tenants"

// AllowTenants lets [Tenants] read pods, and gives them a priority level of their own with few
// seats, which its users have to share. It waits until the server lets tenant, one of these
// users, read. It leaves objects that exist already.
func (t *Target) AllowTenants(ctx context.Context, tenant *Target) error {
	client, err := kubernetes.NewForConfig(t.config)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	meta := metav1.ObjectMeta{Name: Tenants}
	made := func(err error) error {
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("bench: tenants: %w", err)
		}
		return nil
	}
	_, role := client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: meta,
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
	}, metav1.CreateOptions{})
	_, bound := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: Tenants}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: Tenants},
	}, metav1.CreateOptions{})
	_, level := client.FlowcontrolV1().PriorityLevelConfigurations().Create(ctx, tenantsLevel(meta), metav1.CreateOptions{})
	_, schema := client.FlowcontrolV1().FlowSchemas().Create(ctx, tenantsSchema(meta), metav1.CreateOptions{})
	if err := errors.Join(made(role), made(bound), made(level), made(schema)); err != nil {
		return err
	}
	return tenant.awaitAccess(ctx)
}

// awaitAccess waits until the user may read: servers see a new binding a little later.
func (t *Target) awaitAccess(ctx context.Context) error {
	const longest = time.Minute
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	for {
		err := t.once(ctx, call{path: "/api/v1/namespaces/default/pods?limit=1", accept: JSON})
		var refused *statusError
		if !errors.As(err, &refused) || refused.status != http.StatusForbidden {
			return err
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("bench: tenants: %w", refused)
		}
	}
}

// tenantsLevel has five seats of the 600 that servers have by default, and lends and
// borrows none.
func tenantsLevel(meta metav1.ObjectMeta) *flowcontrolv1.PriorityLevelConfiguration {
	shares, none := int32(2), int32(0)
	return &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: meta, Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
		Type: flowcontrolv1.PriorityLevelEnablementLimited,
		Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
			NominalConcurrencyShares: &shares, LendablePercent: &none, BorrowingLimitPercent: &none,
			LimitResponse: flowcontrolv1.LimitResponse{
				Type:    flowcontrolv1.LimitResponseTypeQueue,
				Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 128, HandSize: 6, QueueLengthLimit: 50},
			},
		},
	}}
}

// tenantsSchema puts each of them into queues of its own.
func tenantsSchema(meta metav1.ObjectMeta) *flowcontrolv1.FlowSchema {
	all := []string{flowcontrolv1.ResourceAll}
	return &flowcontrolv1.FlowSchema{ObjectMeta: meta, Spec: flowcontrolv1.FlowSchemaSpec{
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: Tenants},
		MatchingPrecedence:         900,
		DistinguisherMethod:        &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
		Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
			Subjects:      []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: Tenants}}},
			ResourceRules: []flowcontrolv1.ResourcePolicyRule{{Verbs: all, APIGroups: all, Resources: all, ClusterScope: true, Namespaces: all}},
		}},
	}}
}

// FloodConfig is a workload of one user's reads, alone and beside another user that sends
// as many requests as the server answers.
type FloodConfig struct {
	// Quiet is the workload that is measured. Flood's Target sends its requests.
	Quiet ReadConfig
	// By requests Path again and again, from Clients clients at once. An answer of 429 (Too
	// Many Requests) is no error.
	By           *Target
	Path, Accept string
	Clients      int
	// Repeats is how often Quiet is run alone and then beside the flood.
	Repeats int
}

// Values of a Result of Flood.
const (
	AloneP99      = "p99 alone"
	Slowdown      = "p99 beside the flood, of that alone"
	FloodAnswered = "answers to the flood"
	FloodRefused  = "refusals of the flood"
)

// Flood runs the workload. Its Result is that of Quiet beside the flood.
func Flood(ctx context.Context, t *Target, c FloodConfig) (*Result, error) {
	if c.Repeats < 1 || c.Clients < 1 {
		return nil, fmt.Errorf("bench: want at least one turn and one client, got %d and %d", c.Repeats, c.Clients)
	}
	var alone, beside []*Result
	f := &flood{config: c}
	for range c.Repeats {
		r, err := Read(ctx, t, c.Quiet)
		if err != nil {
			return nil, err
		}
		alone = append(alone, r)
		stop := f.start(ctx)
		r, err = Read(ctx, t, c.Quiet)
		stop()
		if err != nil {
			return nil, err
		}
		beside = append(beside, r)
	}
	a, b := Merge(alone...), Merge(beside...)
	b.Add(AloneP99, a.Quantile(99).Seconds(), "s")
	if p99 := a.Quantile(99); p99 > 0 {
		b.Add(Slowdown, float64(b.Quantile(99))/float64(p99), "")
	}
	b.Add(FloodAnswered, float64(f.answered.Load()), "")
	b.Add(FloodRefused, float64(f.refused.Load()), "")
	b.Errors += a.Failures() + int(f.failed.Load())
	for _, first := range []string{a.FirstError, f.firstError()} {
		if b.FirstError == "" {
			b.FirstError = first
		}
	}
	return b, nil
}

// flood sends requests and counts how they end.
type flood struct {
	config                    FloodConfig
	answered, refused, failed atomic.Int64

	mu    sync.Mutex
	first error
}

// start returns once requests are answered. The function that it returns ends the flood.
func (f *flood) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	for range f.config.Clients {
		group.Go(func() {
			own := &lane{t: f.config.By}
			defer own.close()
			for ctx.Err() == nil {
				_, err := own.do(ctx, call{path: f.config.Path, accept: f.config.Accept})
				f.count(ctx, err)
				begin()
			}
		})
	}
	select {
	case <-begun:
	case <-ctx.Done():
	}
	return func() { cancel(); group.Wait() }
}

func (f *flood) count(ctx context.Context, err error) {
	var refused *statusError
	switch {
	case err == nil:
		f.answered.Add(1)
	case ctx.Err() != nil:
	case errors.As(err, &refused) && refused.status == http.StatusTooManyRequests:
		f.refused.Add(1)
		_ = sleep(ctx, 50*time.Millisecond) // a client that hardly heeds Retry-After
	default:
		f.failed.Add(1)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.first == nil {
			f.first = err
		}
		_ = sleep(ctx, 50*time.Millisecond)
	}
}

func (f *flood) firstError() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.first == nil {
		return ""
	}
	return f.first.Error()
}
