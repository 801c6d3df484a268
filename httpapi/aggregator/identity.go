package aggregator

import (
	"context"
	"fmt"
	"sync/atomic"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// identity is the client certificate of this server for remote servers.
type identity struct {
	files atomic.Pointer[dynamiccertificates.DynamicCertKeyPairContent] // nil: nothing
}

// current returns certificate and key as they are now.
func (i *identity) current() (cert, key []byte) {
	if files := i.files.Load(); files != nil {
		return files.CurrentCertKeyContent()
	}
	return nil, nil
}

// load reads the files. Upstream's constructor starts goroutines, which end with Run.
func (i *identity) load(ctx context.Context, certFile, keyFile string) (*dynamiccertificates.DynamicCertKeyPairContent, error) {
	files, err := dynamiccertificates.NewDynamicServingContentFromFiles("aggregator-proxy-cert", certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("aggregator: certificate: %w", err)
	}
	if err := files.RunOnce(ctx); err != nil {
		return nil, fmt.Errorf("aggregator: certificate: %w", err)
	}
	i.files.Store(files)
	return files, nil
}
