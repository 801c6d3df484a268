package snapshot

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/larder-io/larder/kv/embedded"
)

// DefaultBump is the usual value of RestoreConfig.Bump. etcd recommends it for Kubernetes, because no
// cluster writes as much between two backups.
const DefaultBump = 1_000_000_000

// Status describes a snapshot. Its Revision is the highest of any key; etcd's own may have been higher.
type Status = snapshot.Status

// Member is the owner of the data directory. The zero value is the server of package embedded.
type Member struct {
	// Name and Peer are the member's name and peer URL.
	Name, Peer string
	// Cluster is "name=peer URL" of all members, separated by commas. Token is the cluster token; Restore makes one if
	// it is empty. Both must be the same for all members.
	Cluster, Token string
}

// RestoreConfig configures Restore.
type RestoreConfig struct {
	// Path is the file. Dir is the data directory to make, which must be missing or empty.
	Path, Dir string
	Member    Member
	// Bump is the number of revisions that the restored store is ahead of its snapshot. Earlier revisions are marked as
	// compacted, so a watch that resumes from the previous cluster ends with an error. With 0, the new cluster uses
	// some revisions of the previous one again, for other writes.
	Bump uint64
}

// Inspect checks and describes a snapshot.
func Inspect(ctx context.Context, path string) (Status, error) {
	status, err := check(ctx, path)
	if err != nil {
		return Status{}, fmt.Errorf("snapshot: %s: %w", path, err)
	}
	return status, nil
}

// sector divides the size of every database.
const sector = 512

// check returns the status of a snapshot. It fails unless the file is a database followed by its checksum.
func check(ctx context.Context, path string) (Status, error) {
	file, err := os.Open(path)
	if err != nil {
		return Status{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return Status{}, err
	}
	size := info.Size()
	if size%sector != sha256.Size {
		return Status{}, fmt.Errorf("not a complete etcd snapshot: %d bytes are not a database followed by a checksum", size)
	}
	from := reader{ctx, file}
	sum, want := sha256.New(), make([]byte, sha256.Size)
	if _, err := io.CopyN(sum, from, size-sha256.Size); err != nil {
		return Status{}, err
	}
	if _, err := io.ReadFull(from, want); err != nil {
		return Status{}, err
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return Status{}, errors.New("damaged: the SHA-256 checksum is wrong")
	}
	return inspect(path)
}

// reader reads until its context ends.
type reader struct {
	ctx  context.Context
	from io.Reader
}

// Read implements io.Reader.
func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.from.Read(p)
}

// inspect reads the keys of a snapshot. bbolt panics if a page is damaged.
func inspect(path string) (_ Status, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a page may point beyond the file
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("damaged: %v", p)
		}
	}()
	return snapshot.NewV3(zap.NewNop()).Status(path)
}

// Restore makes the data directory of a new cluster from a snapshot.
func Restore(ctx context.Context, cfg RestoreConfig) (Status, error) {
	if err := checkEmpty(cfg.Dir); err != nil {
		return Status{}, fmt.Errorf("snapshot: %w", err)
	}
	status, err := Inspect(ctx, cfg.Path)
	if err != nil {
		return Status{}, err
	}
	if err := restore(ctx, cfg); err != nil {
		return Status{}, fmt.Errorf("snapshot: restore %s: %w", cfg.Path, err)
	}
	return status, nil
}

// checkEmpty fails unless dir is empty or missing.
func checkEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty: move it away, or name another directory", dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// restore builds a directory beside the final one and renames it when it is complete.
func restore(ctx context.Context, cfg RestoreConfig) (err error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+".restore-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(work))
		}
	}()
	m := cfg.Member
	m.Name, m.Peer = cmp.Or(m.Name, embedded.MemberName), cmp.Or(m.Peer, embedded.MemberPeer)
	if err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: cfg.Path, OutputDataDir: work,
		Name: m.Name, PeerURLs: []string{m.Peer}, InitialCluster: cmp.Or(m.Cluster, m.Name+"="+m.Peer),
		InitialClusterToken: cmp.Or(m.Token, "larder-"+rand.Text()),
		RevisionBump:        cfg.Bump, MarkCompacted: cfg.Bump > 0,
	}); err != nil {
		return err
	}
	// etcd has synced the contents of the files. This makes their names durable.
	if err := filepath.WalkDir(work, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return syncDir(path)
	}); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) { // fails unless it is empty
		return err
	}
	if err := os.Rename(work, dir); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}
