package main_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/larder-io/larder/internal/proctest"
)

// TestWatchGoesOnAfterRestart kills the server and watches its successor from where
// a client was before: each event comes once, in order. Lists of that time are
// served as well. Without a replay the client has to list again.
func TestWatchGoesOnAfterRestart(t *testing.T) {
	p := serve(t, "--index-labels", "configmaps=app")
	client := p.client()
	var changes []string
	var from string
	for i := range 30 {
		version := writeNumber(t, client, i)
		if i == 9 {
			from = version
		} else if i > 9 {
			changes = append(changes, fmt.Sprintf("%d@%s", i, version))
		}
	}
	p.Kill()
	p.start()
	p.awaitReady()
	client = p.client()
	changes = append(changes, fmt.Sprintf("%d@%s", 30, writeNumber(t, client, 30)))
	if got, err := numbers(t, client, from, len(changes)); err != nil || !slices.Equal(got, changes) {
		t.Errorf("watch after %s: %q, %v; want %q", from, got, err, changes)
	}
	list, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{
		LabelSelector: "app=number", ResourceVersion: from, ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	})
	if err != nil || len(list.Items) != 1 || list.Items[0].Data["n"] != "9" {
		t.Errorf("list at %s: %+v, %v", from, list, err)
	}

	p.args = append(p.args, "--replay-revisions=0")
	p.Kill()
	p.start()
	p.awaitReady()
	if got, err := numbers(t, p.client(), from, 1); !apierrors.IsResourceExpired(err) {
		t.Errorf("watch after %s, not replayed: %q, %v", from, got, err)
	}
}

// writeNumber writes n into a configmap and returns its new resource version.
func writeNumber(t *testing.T, client kubernetes.Interface, n int) string {
	t.Helper()
	maps := client.CoreV1().ConfigMaps("default")
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "number", Labels: map[string]string{"app": "number"}},
		Data:       map[string]string{"n": strconv.Itoa(n)},
	}
	var err error
	if n == 0 {
		object, err = maps.Create(t.Context(), object, metav1.CreateOptions{})
	} else {
		object, err = maps.Update(t.Context(), object, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return object.ResourceVersion
}

// numbers watches the configmap after a version until count changes came.
func numbers(t *testing.T, client kubernetes.Interface, after string, count int) (got []string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	w, err := client.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{LabelSelector: "app=number", ResourceVersion: after})
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return got, apierrors.FromObject(event.Object)
		}
		object := event.Object.(*corev1.ConfigMap)
		if got = append(got, object.Data["n"]+"@"+object.ResourceVersion); len(got) == count {
			break
		}
	}
	// Nothing comes twice, nor after the end.
	select {
	case event := <-w.ResultChan():
		return append(got, strings.ToLower(string(event.Type))), nil
	case <-time.After(100 * time.Millisecond):
		return got, nil
	}
}
