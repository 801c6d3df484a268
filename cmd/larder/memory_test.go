package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCgroupLimit(t *testing.T) {
	for _, test := range []struct {
		name  string
		files []string
		limit int64
		ok    bool
	}{
		{"no files", nil, 0, false},
		{"version 2", []string{"536870912\n"}, 512 << 20, true},
		{"version 2 unlimited", []string{"max\n"}, 0, false},
		{"version 1 unlimited", []string{"", "9223372036854771712\n"}, 0, false},
		{"version 1", []string{"", "536870912\n"}, 512 << 20, true},
		{"rubbish", []string{"lots\n"}, 0, false},
		{"zero", []string{"0\n"}, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			files := []string{filepath.Join(t.TempDir(), "missing")}
			for _, text := range test.files {
				if text == "" {
					continue
				}
				file := filepath.Join(t.TempDir(), "limit")
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				files = append(files, file)
			}
			limit, ok := cgroupLimit(files...)
			if limit != test.limit || ok != test.ok {
				t.Errorf("%d, %v, want %d, %v", limit, ok, test.limit, test.ok)
			}
		})
	}
}
