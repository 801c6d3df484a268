package faults

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/larder-io/larder/httpapi/faults"
)

// With this seed, TestSeedsRepeatTheirFaults meets faults of each kind.
var seed = flag.Uint64("seed", 24, "of TestSeedsRepeatTheirFaults")

// count creates an object and counts in it up to n, as a controller that reads, changes and retries.
func count(ctx context.Context, client kubernetes.Interface, name string, n int) (log []string) {
	maps := client.CoreV1().ConfigMaps("default")
	note := func(what string, err error) {
		if err == nil {
			log = append(log, what)
		} else if text := err.Error(); strings.Contains(text, "stream error") || strings.Contains(text, "EOF") {
			log = append(log, what+": cut") // the error contains a connection's number
		} else {
			log = append(log, what+": "+text)
		}
	}
	for range 20 * n {
		m, err := maps.Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
		if apierrors.IsNotFound(err) {
			_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"n": "."}}, metav1.CreateOptions{})
			note("create", err)
			continue
		}
		if note("get", err); err != nil {
			continue
		}
		if len(m.Data["n"]) >= n {
			return log
		}
		m.Data["n"] += "."
		_, err = maps.Update(ctx, m, metav1.UpdateOptions{})
		note("update "+m.Data["n"], err)
	}
	return append(log, "gave up")
}

// TestSeedsRepeatTheirFaults runs a single-threaded controller a hundred times with the same seed. Each run must meet
// the same faults, and get the same responses to the same requests.
func TestSeedsRepeatTheirFaults(t *testing.T) {
	s := serve(t, "serve", "--faults", "true")
	config := s.as("counter", 2)
	config.QPS = -1
	var first []string
	for run := range 100 {
		s.set(t, faults.Rule{Name: "seed", Seed: *seed, Match: faults.Match{UserAgent: "counter", Resource: "configmaps"}})
		log := count(t.Context(), kubernetes.NewForConfigOrDie(config), "counted", 10)
		state, err := s.faults.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range state.Injected {
			log = append(log, i.String())
		}
		if err := s.faults.Clear(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := kubernetes.NewForConfigOrDie(s.config).CoreV1().ConfigMaps("default").Delete(t.Context(), "counted", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if run == 0 {
			first = log
			t.Log("\n" + strings.Join(first, "\n"))
			for _, kind := range []string{"refused", "lost", "behind"} {
				if !slices.ContainsFunc(first, func(l string) bool { return strings.Contains(l, kind) }) {
					t.Errorf("no fault with %q", kind)
				}
			}
		} else if !slices.Equal(log, first) {
			t.Fatalf("run %d differs from the first:\n%s", run, strings.Join(log, "\n"))
		}
	}
}

// TestSeedOfTheCommandLine checks that larder dev --faults SEED needs no rule, and injects nothing into kubectl's
// requests.
func TestSeedOfTheCommandLine(t *testing.T) {
	s := serve(t, "dev", "--faults", fmt.Sprint(*seed))
	for _, agent := range []string{"kubectl/v1.36.3", "counter"} {
		config := s.as(agent, 1)
		config.QPS = -1
		count(t.Context(), kubernetes.NewForConfigOrDie(config), agent[:7], 6)
		state, err := s.faults.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		met := slices.ContainsFunc(state.Injected, func(i faults.Injected) bool { return i.UserAgent == agent && i.Seed == *seed })
		if text := state.String(); met != (agent == "counter") || met && !strings.Contains(text, fmt.Sprint("rule seed has seed ", *seed)) {
			t.Errorf("%s: %s", agent, text)
		}
	}
}
