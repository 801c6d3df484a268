package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"google.golang.org/protobuf/proto"
)

// firstLog is the name of the first file of a WAL.
const firstLog = "0000000000000000-0000000000000000.wal"

// removeEmptyLog removes a WAL without entries, so that etcd creates a new one. A first start that is killed before it
// writes the entry that adds the member leaves such a WAL. etcd would then wait forever for a voter. Nothing is lost,
// because an acknowledged write is an entry. removeEmptyLog keeps a WAL that is damaged, or beside a snapshot or a
// database with contents.
func removeEmptyLog(dir string) error {
	logs := datadir.ToWALDir(dir)
	files, err := fs.Glob(os.DirFS(logs), "*.wal*")
	if err != nil || len(files) != 1 || files[0] != firstLog || !isEmptyLog(filepath.Join(logs, firstLog)) {
		return err
	}
	snapshots, err := fs.Glob(os.DirFS(datadir.ToSnapDir(dir)), "*.snap*")
	if err != nil || len(snapshots) > 0 {
		return err
	}
	if empty, err := isEmptyDatabase(datadir.ToBackendFileName(dir)); err != nil || !empty {
		return err
	}
	if err := os.RemoveAll(logs); err != nil {
		return fmt.Errorf("remove an empty log: %w", err)
	}
	return nil
}

// isEmptyLog reports whether a WAL file has only its metadata, the snapshot with index 0, and zeros.
func isEmptyLog(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	var record walpb.Record
	decoder, hasMetadata := wal.NewDecoder(fileutil.NewFileReader(file)), false
	for err = decoder.Decode(&record); err == nil; err = decoder.Decode(&record) {
		switch record.GetType() {
		case wal.CrcType:
			if record.GetCrc() != 0 { // it continues another file
				return false
			}
		case wal.MetadataType:
			hasMetadata = true
		case wal.SnapshotType:
			var snapshot walpb.Snapshot
			if proto.Unmarshal(record.Data, &snapshot) != nil || snapshot.GetIndex() != 0 || snapshot.GetTerm() != 0 {
				return false
			}
		default:
			return false
		}
	}
	// A damaged file may have zeros before an entry.
	return errors.Is(err, io.EOF) && hasMetadata && hasZeros(file, decoder.LastOffset())
}

// hasZeros reports whether all bytes of a file from an offset on are zero.
func hasZeros(file *os.File, offset int64) bool {
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return false
	}
	for chunk := make([]byte, 1<<16); ; {
		n, err := file.Read(chunk)
		switch {
		case len(bytes.Trim(chunk[:n], "\x00")) > 0:
			return false
		case err != nil:
			return errors.Is(err, io.EOF)
		}
	}
}

// isEmptyDatabase reports whether a database is missing or has had no entry applied. etcd writes its own metadata, and
// the revision of its users, before it has a log.
func isEmptyDatabase(path string) (empty bool, err error) {
	empty = true
	err = viewDatabase(path, func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, bucket *bbolt.Bucket) error {
			switch string(name) {
			case string(schema.Meta.Name()):
				index := bucket.Get(schema.MetaConsistentIndexKeyName)
				empty = empty && (index == nil || binary.BigEndian.Uint64(index) == 0)
			case string(schema.Auth.Name()):
			default:
				key, _ := bucket.Cursor().First()
				empty = empty && key == nil
			}
			return nil
		})
	})
	return empty, err
}
