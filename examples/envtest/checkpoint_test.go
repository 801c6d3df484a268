package boxes_test

import (
	"context"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// checkpoint saves the server's state under a name.
func checkpoint(ctx context.Context, config *rest.Config, name string) error {
	return post(ctx, config, "/larder/checkpoints/"+name)
}

// clean resets the server at the end of a test to its state at the beginning. Watches continue: the
// manager and its caches see the objects being deleted.
func clean(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if err := post(context.Background(), suite.env.Config, "/larder/checkpoints/clean/reset"); err != nil {
			t.Error(err)
		}
	})
}

func post(ctx context.Context, config *rest.Config, path string) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return client.RESTClient().Post().AbsPath(path).Do(ctx).Error()
}
