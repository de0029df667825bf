// Package docs tests the documentation: examples, links and the names it
// mentions.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The program in README.md is the one that Example_embed runs.
func TestReadmeShowsTheProgramThatRuns(t *testing.T) {
	_, after, _ := strings.Cut(read(t, "embed_test.go"), "// begin README\n")
	program, _, ok := strings.Cut(after, "\n// end README")
	if !ok {
		t.Fatal("embed_test.go has lost its markers")
	}
	program = strings.Replace(program, "\t\"log\"\n", "", 1) // of the test alone
	if !strings.Contains(read(t, "../README.md"), "```go\n"+strings.TrimSpace(program)+"\n```") {
		t.Error("README.md shows another program than docs/embed_test.go")
	}
}

var link = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)

// Every relative link of the documentation leads somewhere.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "../README.md") {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: link to %s: %v", page, m[1], err)
			}
		}
	}
}

// Every test that invariants.md names exists.
func TestInvariantsNameTestsThatExist(t *testing.T) {
	named := regexp.MustCompile("`([a-z][a-z/]*)`: `((?:Test|Fuzz)[A-Za-z0-9_]*)`").FindAllStringSubmatch(read(t, "invariants.md"), -1)
	if len(named) < 10 {
		t.Fatalf("%d tests are named, want at least one for each invariant", len(named))
	}
	for _, m := range named {
		files, err := filepath.Glob(filepath.Join("..", m[1], "*.go")) // a conformance suite is not in test files
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range files {
			found = found || strings.Contains(read(t, f), "func "+m[2]+"(")
		}
		if !found {
			t.Errorf("%s: no %s", m[1], m[2])
		}
	}
}

// Every file that the walk through the main paths names exists, and each path
// names it once.
func TestWalkNamesFilesThatExist(t *testing.T) {
	_, walk, ok := strings.Cut(read(t, "architecture.md"), "\n## A walk through the main paths\n")
	if !ok {
		t.Fatal("architecture.md has no walk through the main paths")
	}
	walk, _, _ = strings.Cut(walk, "\n## ")
	steps := regexp.MustCompile("(?m)^([0-9]+)\\. `([a-z0-9_/]+\\.go)`: ").FindAllStringSubmatch(walk, -1)
	if len(steps) < 40 {
		t.Fatalf("the walk has %d steps, want those of four paths", len(steps))
	}
	seen := map[string]bool{}
	for _, m := range steps {
		if m[1] == "1" {
			clear(seen)
		}
		if seen[m[2]] {
			t.Errorf("%s: twice in one path", m[2])
		}
		seen[m[2]] = true
	}
	for _, m := range regexp.MustCompile("`([a-z0-9_/]+\\.go)`").FindAllStringSubmatch(walk, -1) {
		if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
			t.Errorf("the walk names %s: %v", m[1], err)
		}
	}
}
