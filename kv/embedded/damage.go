package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// viewDatabase calls view with a transaction of a database, unless there is no database or its file is empty.
func viewDatabase(path string, view func(*bbolt.Tx) error) error {
	if info, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout): // an etcd that does not use our lock has it open
		return fmt.Errorf("%s is in use: %w", path, err)
	case err != nil:
		return fmt.Errorf("%s is damaged: %w", path, err)
	}
	defer db.Close()
	return db.View(view)
}

// checkDatabase reads the keys of a database, if there is one, and returns an error if its pages are damaged. etcd
// reads the same pages in its own goroutines, where a damaged page would crash the process.
func checkDatabase(path string) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a page may point beyond the file
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s is damaged: %v", path, p)
		}
	}()
	return viewDatabase(path, func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, bucket *bbolt.Bucket) error {
			if err := checkBucket(bucket); err != nil {
				return fmt.Errorf("%s is damaged: bucket %q: %w", path, name, err)
			}
			return nil
		})
	})
}

func checkBucket(bucket *bbolt.Bucket) error {
	var last []byte
	cursor, search := bucket.Cursor(), bucket.Cursor()
	for key, value := cursor.First(); key != nil; key, value = cursor.Next() {
		// A search also reads the keys in branch pages, which a cursor does not compare.
		if found, _ := search.Seek(key); !bytes.Equal(found, key) || last != nil && bytes.Compare(last, key) >= 0 {
			return errors.New("keys are not in order")
		}
		if value == nil {
			return errors.New("it contains a nested bucket") // etcd does not nest buckets
		}
		last = key
	}
	return nil
}
