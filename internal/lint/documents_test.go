package lint

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const maxBenchmarkLines = 600

// documents returns the text of each document of the project, by its path from the root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	root, all := filepath.Join("..", ".."), make(map[string]string)
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			rel, _ := filepath.Rel(root, path)
			all[filepath.ToSlash(rel)] = string(text)
		}
	}
	if len(all) < 10 {
		t.Fatalf("found only %d documents: the walk is broken", len(all))
	}
	return all
}

const (
	benchmarkPath = "BENCHMARKS.md"
	notesPath     = "docs/benchmark-notes.md"
)

var (
	rowID    = regexp.MustCompile(`\b[BCDELNOPQRSTXY]\d{1,2}\b`)
	rowRange = regexp.MustCompile(`\b([B-Y])(\d{1,2})(?: to |–)([B-Y])(\d{1,2})\b`)
	quantity = regexp.MustCompile(`\d+(?:,\d{3})*(?:\.\d+)?(?: ?(?:µs|us|ms|ns|s|KB|MB|GB|%|times)\b)?`)
	// conjunction stands between figures that share the unit of the last one.
	conjunction = regexp.MustCompile(`^(?:, | to |–|-| and | or |; )$`)
	code        = regexp.MustCompile("(?s)```.*?\n```|`[^`]*`")
	sentence    = regexp.MustCompile(`\.(?:\*\*)?(?:\s|$)`)
)

// figures returns the quantities of a text in one spelling, such as "2.4 ms", in their order.
func figures(text string) []string {
	text = strings.ReplaceAll(text, "**", "")
	at := quantity.FindAllStringIndex(text, -1)
	found, unit := make([]string, len(at)), ""
	for i := len(at) - 1; i >= 0; i-- {
		value := text[at[i][0]:at[i][1]]
		digits := strings.TrimRight(value, " µusmnKMGBtie%")
		if own := strings.TrimSpace(value[len(digits):]); own != "" {
			unit = strings.Replace(own, "us", "µs", 1)
		} else if i == len(at)-1 || !conjunction.MatchString(text[at[i][1]:at[i+1][0]]) {
			unit = ""
		}
		found[i] = strings.TrimSpace(digits + " " + unit)
	}
	return found
}

// blocks splits a document into rows of tables, items of lists and paragraphs.
func blocks(text string) []string {
	var all []string
	open := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		separate := line == "" || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "#")
		if open && !separate && !strings.HasPrefix(line, "- ") {
			all[len(all)-1] += " " + line
			continue
		}
		all = append(all, line)
		open = !separate
	}
	return all
}

// measured returns, for each id of a row, its figures: of its row, of the rows below that have no id, of the column
// that it heads, and of the paragraphs that name it.
func measured(text string) map[string][]string {
	all := make(map[string][]string)
	var heads, row []string
	for _, block := range blocks(text) {
		ids := rowID.FindAllString(block, -1)
		if !strings.HasPrefix(block, "|") {
			heads, row = nil, nil
			for _, id := range ids {
				all[id] = append(all[id], figures(block)...)
			}
			continue
		}
		cells := strings.Split(strings.Trim(block, "|"), "|")
		if heads == nil {
			heads = cells
		}
		for i, cell := range cells {
			if id := rowID.FindString(heads[min(i, len(heads)-1)]); id != "" {
				all[id] = append(all[id], figures(cell)...)
			}
		}
		if strings.TrimSpace(cells[0]) != "" {
			row = nil
		}
		if row = append(row, ids...); len(row) > 0 {
			for _, id := range row {
				all[id] = append(all[id], figures(block)...)
			}
		}
	}
	return all
}

// cited returns the ids of known rows that a text names, ranges such as "B27 to B30" included.
func cited(text string, known map[string][]string) []string {
	ids := rowID.FindAllString(text, -1)
	for _, bounds := range rowRange.FindAllStringSubmatch(text, -1) {
		first, _ := strconv.Atoi(bounds[2])
		last, _ := strconv.Atoi(bounds[4])
		for i := first; i <= last; i++ {
			if id := fmt.Sprint(bounds[1], i); known[id] != nil {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// misquoted returns the errors in the figures of a document: each figure in a row or a sentence with an id must be
// one of the row with that id.
func misquoted(text string, known map[string][]string) []string {
	var wrong []string
	for _, block := range blocks(code.ReplaceAllString(text, "")) {
		parts := []string{block}
		if !strings.HasPrefix(block, "|") {
			parts = sentence.Split(block, -1)
		}
		for _, part := range parts {
			ids := cited(part, known)
			var right []string
			for _, id := range ids {
				if known[id] == nil {
					wrong = append(wrong, fmt.Sprintf("%s is no row: %s", id, part))
				}
				right = append(right, known[id]...)
			}
			for _, figure := range figures(part) {
				value, unit, _ := strings.Cut(figure, " ")
				if len(ids) == 0 || unit == "" || slices.Contains(right, figure) || unit == "times" && slices.Contains(right, value) {
					continue
				}
				wrong = append(wrong, fmt.Sprintf("%q is not a figure of %v: %s", figure, ids, part))
			}
		}
	}
	return wrong
}

// TestFiguresAreMeasured checks that a figure that a document cites with an id is a figure of the row with that id in
// BENCHMARKS.md.
func TestFiguresAreMeasured(t *testing.T) {
	all := documents(t)
	known := measured(all[benchmarkPath])
	if lines := strings.Count(all[benchmarkPath], "\n"); lines > maxBenchmarkLines {
		t.Errorf("%s has %d lines, more than %d: move old results to %s", benchmarkPath, lines, maxBenchmarkLines, notesPath)
	}
	checked := 0
	for name, text := range all {
		if name == benchmarkPath || name == notesPath {
			continue
		}
		checked += len(rowID.FindAllString(code.ReplaceAllString(text, ""), -1))
		for _, problem := range misquoted(text, known) {
			t.Errorf("%s: %s", name, problem)
		}
	}
	if checked < 10 {
		t.Errorf("found only %d ids: the expression is broken", checked)
	}
}

// TestMisquotedFiguresAreFound changes figures by hand.
func TestMisquotedFiguresAreFound(t *testing.T) {
	known := measured("| id | work | N9: nodes |\n|---|---|---|\n| B1 | 24, 35 µs | 5 s |\n| | 1.2 ms | 6 s |\n\nB2 takes 7 KB.\n")
	for text, problems := range map[string]int{
		"A GET takes 24 µs (B1), at most 1.2 ms (B1). A start takes 3 s.": 0,
		"A GET takes 24 to 35 µs (B1 to B2), a watch 7 KB.":               0,
		"A GET takes 25 µs (B1).":                                         1,
		"| GET | 24 to 36 µs | B1 |":                                      1,
		"A GET takes 24 ms (B1).":                                         1,
		"A watch takes\n7 MB (B2).":                                       1,
		"A GET takes 24 µs (B3).":                                         2,
		"A node takes 6 s (N9), a GET does not.":                          0,
	} {
		if wrong := misquoted(text, known); len(wrong) != problems {
			t.Errorf("%q: found %q, want %d problems", text, wrong, problems)
		}
	}
}

// TestPlainWords checks that documents use the terms of the field, and no words that mark a sentence to rewrite.
func TestPlainWords(t *testing.T) {
	shunned := map[*regexp.Regexp]string{
		regexp.MustCompile(`(?i)\banew\b`):                                "again, reload, re-read",
		regexp.MustCompile(`(?i)\bthereby\b`):                             "so",
		regexp.MustCompile(`(?i)\bwhom\b`):                                "the user, the client",
		regexp.MustCompile(`(?i)\b(?:of|for) which\b`):                    "a second sentence",
		regexp.MustCompile(`(?i)\bbut for\b`):                             "except",
		regexp.MustCompile(`(?i)\b(?:is|are) told\b`):                     "receives, gets",
		regexp.MustCompile(`(?i)\b(?:is|are) to be\b`):                    "must be",
		regexp.MustCompile(`(?i)\bstock (?:kube|server)`):                 "kube-apiserver",
		regexp.MustCompile(`(?i)\bdefinitions? of (?:custom|resource)`):   "CRD",
		regexp.MustCompile(`(?m)^(?:[-*] )?Who\b[^?]*\.`):                 "a noun as the subject",
		regexp.MustCompile(`(?i)\brecords? of (?:fields|managers|who)\b`): "managedFields",
	}
	for name, text := range documents(t) {
		text = code.ReplaceAllString(text, "")
		for expression, instead := range shunned {
			for _, found := range expression.FindAllString(text, -1) {
				t.Errorf("%s: %q: write %s", name, found, instead)
			}
		}
	}
}

// TestCommentsCiteRows checks that each measurement that a comment cites, as in "(B10)", has a row.
func TestCommentsCiteRows(t *testing.T) {
	all := documents(t)
	rows := all[benchmarkPath] + all[notesPath]
	citation := regexp.MustCompile(`\([BCDELNOPQRTX]\d{1,2}(?:, [BCDELNOPQRTX]\d{1,2})*\)`)
	_, files := tree(t)
	found := 0
	for _, f := range files {
		for _, group := range f.ast.Comments {
			for _, ids := range citation.FindAllString(group.Text(), -1) {
				for _, id := range rowID.FindAllString(ids, -1) {
					found++
					if !regexp.MustCompile(`\b` + id + `\b`).MatchString(rows) {
						t.Errorf("%s cites %s, which neither %s nor %s has", f.path, id, benchmarkPath, notesPath)
					}
				}
			}
		}
	}
	if found < 10 {
		t.Errorf("found only %d citations: the expression is broken", found)
	}
}

// anchors returns the anchors of a document's headings, as GitHub makes them.
func anchors(text string) []string {
	var all []string
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		anchor := regexp.MustCompile(`[^\w -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		all = append(all, strings.ReplaceAll(anchor, " ", "-"))
	}
	return all
}

// TestNamedFilesExist checks that each file and heading that a document links, and each path and test that it names,
// exists.
func TestNamedFilesExist(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)
	named := regexp.MustCompile("`((?:bench|cache|cmd|docs|examples|httpapi|internal|kv|watch)/[\\w./-]+)`")
	test := regexp.MustCompile("`(Test\\w+)`")
	_, files := tree(t)
	var tests strings.Builder
	for _, f := range files {
		if f.test {
			tests.Write(f.src)
		}
	}
	root, found, all := filepath.Join("..", ".."), 0, documents(t)
	for name, text := range all {
		paths := make(map[string]bool)
		for _, target := range link.FindAllStringSubmatch(text, -1) {
			file := name
			if target[1] != "" {
				file = filepath.ToSlash(filepath.Join(filepath.Dir(name), target[1]))
				paths[filepath.Join(root, file)] = true
			}
			if target[2] != "" && !slices.Contains(anchors(all[file]), target[2]) {
				t.Errorf("%s links #%s of %s, which has no such heading", name, target[2], file)
			}
		}
		for _, path := range named.FindAllStringSubmatch(text, -1) {
			paths[filepath.Join(root, path[1])] = true
		}
		for path := range paths {
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s names %s, which does not exist", name, path)
			}
		}
		for _, called := range test.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(tests.String(), "func "+called[1]+"(") {
				t.Errorf("%s names %s, which no package has", name, called[1])
			}
		}
		found += len(paths)
	}
	if found < 50 {
		t.Errorf("found only %d paths: the expressions are broken", found)
	}
}
