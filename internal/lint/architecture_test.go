package lint

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestArchitectureNamesPackages checks that the first columns of the tables of packages in ARCHITECTURE.md name every
// package, and that every named path exists.
func TestArchitectureNamesPackages(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, packages, found := strings.Cut(string(text), "## Packages")
	if !found {
		t.Fatal("ARCHITECTURE.md has no section Packages")
	}
	packages, _, _ = strings.Cut(packages, "\n## ")
	quoted := regexp.MustCompile("`([^`]+)`")
	named := make(map[string]bool)
	for row := range strings.Lines(packages) {
		cells := strings.Split(row, "|")
		if len(cells) < 3 {
			continue
		}
		for _, pkg := range quoted.FindAllStringSubmatch(cells[1], -1) {
			named[pkg[1]] = true
			if _, err := os.Stat(filepath.Join(root, pkg[1])); err != nil {
				t.Errorf("ARCHITECTURE.md names %s, which does not exist: %v", pkg[1], err)
			}
		}
	}
	_, files := tree(t)
	for _, f := range files {
		if !named[f.pkg] {
			named[f.pkg] = true // once is enough
			t.Errorf("%s: ARCHITECTURE.md lacks the package: add it to a table", f.pkg)
		}
	}
}

// TestDocsNameFiles checks that Go files that the documents name exist.
func TestDocsNameFiles(t *testing.T) {
	root := filepath.Join("..", "..")
	documents, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	further, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	documents = append(documents, further...)
	file := regexp.MustCompile("`((?:bench|cache|cmd|httpapi|internal|kv|watch)/[a-z0-9_/.-]+\\.go)`")
	seen := 0
	for _, document := range documents {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range file.FindAllStringSubmatch(string(text), -1) {
			seen++
			if _, err := os.Stat(filepath.Join(root, name[1])); err != nil {
				t.Errorf("%s names %s, which does not exist", filepath.Base(document), name[1])
			}
		}
	}
	if seen < 10 {
		t.Errorf("found only %d names of files: the expression is broken", seen)
	}
}
