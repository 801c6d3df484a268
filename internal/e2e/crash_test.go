package e2e_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/larder-io/larder/internal/proctest"
)

// counter is an object with one writer, which increments a number in it. Acknowledged writes must survive a crash,
// others may.
type counter struct {
	name         string
	acknowledged int // highest number whose write succeeded; -1 before the first
	attempted    int // highest number that was sent
}

// count increments the number until ctx ends, also after crashes of the server.
func (c *counter) count(ctx context.Context, client kubernetes.Interface) {
	maps := client.CoreV1().ConfigMaps("default")
	for ctx.Err() == nil {
		next := c.acknowledged + 1
		c.attempted = next
		object := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: c.name},
			Data:       map[string]string{"n": strconv.Itoa(next)},
		}
		var err error
		if c.acknowledged < 0 {
			if _, err = maps.Create(ctx, object, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
				err = nil // an earlier, unacknowledged attempt of this writer
			}
		} else {
			_, err = maps.Update(ctx, object, metav1.UpdateOptions{})
		}
		if err == nil {
			c.acknowledged = next
			continue
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// check compares the stored number with the acknowledged ones.
func (c *counter) check(object *corev1.ConfigMap) error {
	n, err := strconv.Atoi(object.Data["n"])
	if err != nil {
		return err
	}
	if n < c.acknowledged || n > c.attempted {
		return fmt.Errorf("%s has %d, acknowledged %d, attempted %d", c.name, n, c.acknowledged, c.attempted)
	}
	return nil
}

// TestAcknowledgedWritesSurviveACrash kills the server three times under writers. After each restart, acknowledged
// writes must exist, and the same clients must work. Informers must end with the state that a reader sees.
func TestAcknowledgedWritesSurviveACrash(t *testing.T) {
	const crashes = 3
	p := serve(t)
	followers := []*follower{
		follow(t, p, "default", runtime.ContentTypeJSON, true),
		follow(t, p, "default", runtime.ContentTypeProtobuf, true),
	}
	counters := make([]*counter, 4)
	for i := range counters {
		counters[i] = &counter{name: "counter-" + strconv.Itoa(i), acknowledged: -1}
	}
	client, k := p.client(), newKubectl(t, p.kubeconfig(), "default")
	for crash := range crashes {
		ctx, stop := context.WithCancel(t.Context())
		var writers sync.WaitGroup
		for _, c := range counters {
			writers.Go(func() { c.count(ctx, client) })
		}
		before := "configmap/" + counters[0].name
		proctest.Eventually(t, "the writers write", func() error {
			got := k.run("", "get", before, "-o", "name")
			if !strings.HasPrefix(got, before) {
				return fmt.Errorf("%s", got)
			}
			return nil
		})
		p.Kill()
		stop()
		writers.Wait()
		p.start()
		p.awaitReady()
		for _, c := range counters {
			if c.acknowledged < 0 {
				continue
			}
			object, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), c.name, metav1.GetOptions{})
			if err != nil {
				t.Fatalf("after crash %d: %v", crash, err)
			}
			if err := c.check(object); err != nil {
				t.Errorf("after crash %d: %v", crash, err)
			}
		}
	}
	for _, f := range followers {
		awaitSame(t, client, f)
	}
}

// awaitSame waits until a follower has the objects of a consistent list.
func awaitSame(t *testing.T, client kubernetes.Interface, f *follower) {
	t.Helper()
	list, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "the informer catches up", func() error {
		if got := len(f.informer.GetStore().ListKeys()); got != len(list.Items) {
			return fmt.Errorf("it has %d objects of %d", got, len(list.Items))
		}
		for i := range list.Items {
			item, ok, err := f.informer.GetStore().Get(&list.Items[i])
			if err != nil || !ok {
				return fmt.Errorf("%s: %v, found %v", list.Items[i].Name, err, ok)
			}
			if got, want := item.(*corev1.ConfigMap).ResourceVersion, list.Items[i].ResourceVersion; got != want {
				return fmt.Errorf("%s has version %s, want %s", list.Items[i].Name, got, want)
			}
		}
		return nil
	})
}
