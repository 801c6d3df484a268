package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// responseTimeout is how long a member may take to respond before the next one is tried. The transfer of the snapshot
// has no limit.
const responseTimeout = 10 * time.Second

// Source is the etcd to save.
type Source struct {
	// Endpoints are the members' client URLs. They are tried in this order.
	Endpoints []string
	// CAFile, CertFile and KeyFile are PEM files; with none of them the connection is not
	// encrypted.
	CAFile, CertFile, KeyFile string
}

// Save writes a snapshot of an etcd to a new file.
func Save(ctx context.Context, from Source, path string) (Status, error) {
	if err := free(path); err != nil {
		return Status{}, err
	}
	config, err := from.config()
	if err != nil {
		return Status{}, err
	}
	var failed []error
	for _, endpoint := range from.Endpoints {
		config.Endpoints = []string{endpoint}
		status, err := saveFrom(ctx, config, path)
		if err == nil {
			return status, nil
		}
		failed = append(failed, fmt.Errorf("snapshot: %s: %w", endpoint, err))
		if ctx.Err() != nil || errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return Status{}, errors.Join(failed...)
}

// free fails if there is something at path.
func free(path string) error {
	switch _, err := os.Lstat(path); {
	case err == nil:
		return fmt.Errorf("snapshot: %s: %w", path, fs.ErrExist)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	default:
		return fmt.Errorf("snapshot: %w", err)
	}
}

func (s Source) config() (clientv3.Config, error) {
	config := clientv3.Config{
		Logger: zap.NewNop(), MaxUnaryRetries: 1,
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(failFast)},
	}
	if len(s.Endpoints) == 0 {
		return config, errors.New("snapshot: no etcd endpoint is given")
	}
	if s.CAFile == "" && s.CertFile == "" && s.KeyFile == "" {
		return config, nil
	}
	tls, err := transport.TLSInfo{TrustedCAFile: s.CAFile, CertFile: s.CertFile, KeyFile: s.KeyFile}.ClientConfig()
	if err != nil {
		return config, fmt.Errorf("snapshot: %w", err)
	}
	config.TLS = tls
	return config, nil
}

// failFast makes calls fail at once if a member cannot be reached. By default the client tries until the
// context ends and returns the context's error.
func failFast(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(ctx, method, request, reply, conn, append(opts, grpc.WaitForReady(false))...)
}

// saveFrom saves the snapshot of one member.
func saveFrom(ctx context.Context, config clientv3.Config, path string) (Status, error) {
	ctx, cancel := context.WithCancel(ctx) // ends the stream and its reader
	defer cancel()
	client, err := clientv3.New(config)
	if err != nil {
		return Status{}, err
	}
	defer client.Close()
	if err := awaitWrites(ctx, client); err != nil {
		return Status{}, err
	}
	response, err := client.SnapshotWithVersion(ctx)
	if err != nil {
		return Status{}, err
	}
	defer response.Snapshot.Close()
	return write(ctx, path, response.Snapshot)
}

// awaitWrites does a linearizable read, after which the member has applied every write that was acknowledged before.
func awaitWrites(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, responseTimeout)
	defer cancel()
	_, err := client.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
	return err
}

// write writes a snapshot to a temporary file beside path, checks it, and then gives it the name path.
func write(ctx context.Context, path string, from io.Reader) (_ Status, err error) {
	part, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.part")
	if err != nil {
		return Status{}, err
	}
	defer func() {
		part.Close()
		if gone := os.Remove(part.Name()); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}()
	if _, err := io.Copy(part, reader{ctx, from}); err != nil {
		return Status{}, err
	}
	if err := part.Sync(); err != nil {
		return Status{}, err
	}
	status, err := check(ctx, part.Name())
	if err != nil {
		return Status{}, err
	}
	if err := ctx.Err(); err != nil {
		return Status{}, err
	}
	if err := place(part.Name(), path, os.Link); err != nil {
		return Status{}, err
	}
	return status, syncDir(filepath.Dir(path))
}

// place renames part to path. It links, which fails if path exists. On a file system without links it checks and
// renames, which replaces a file that is created in between.
func place(part, path string, link func(from, to string) error) error {
	switch err := link(part, path); {
	case err == nil, errors.Is(err, fs.ErrExist):
		return err
	}
	if err := free(path); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// syncDir makes the names in a directory durable.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
