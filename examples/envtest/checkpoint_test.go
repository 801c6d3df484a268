package boxes_test

import (
	"context"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// checkpoint has the server remember its present state under a name.
func checkpoint(ctx context.Context, config *rest.Config, name string) error {
	return post(ctx, config, "/larder/checkpoints/"+name)
}

// clean has a test end with the state that it began with, whatever it leaves behind. Watches
// go on: the manager and its caches see the objects go.
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
