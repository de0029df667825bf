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

// The program in README.md is the one that Example_embed runs, and is short.
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
	const linesMax = 25
	if _, function, ok := strings.Cut(program, "\nfunc embed("); !ok || strings.Count(strings.TrimSpace(function), "\n")+1 > linesMax {
		t.Errorf("the program has not one function embed of at most %d lines", linesMax)
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^):#]*)(?:#([^)]*))?\)(?:, "([^"]+)")?`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// Every relative link leads to a file, and to a heading of it. A title in quotes after a
// link is that of a section or of a paragraph there.
func TestLinks(t *testing.T) {
	r := look(t)
	sections := map[string]map[string]bool{} // by page: what a link may name after #
	texts := map[string]string{}
	for _, p := range r.pages {
		texts[p.path] = p.prose()
		for _, m := range heading.FindAllStringSubmatch(p.prose(), -1) {
			name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
			add(sections, p.path, strings.ReplaceAll(name, " ", "-"))
		}
	}
	links := 0
	for _, p := range r.pages {
		for _, m := range link.FindAllStringSubmatch(strings.ReplaceAll(p.prose(), "\n", " "), -1) {
			to := p.path
			if m[1] != "" {
				to = filepath.ToSlash(filepath.Join(filepath.Dir(p.path), m[1]))
			}
			links++
			if !r.files[to] {
				t.Errorf("%s: link to %s: there is no %s", p.path, m[1], to)
			} else if m[2] != "" && !sections[to][m[2]] {
				t.Errorf("%s: %s has no heading #%s", p.path, to, m[2])
			}
			if m[3] != "" && !strings.Contains(texts[to], "# "+m[3]) && !strings.Contains(texts[to], "**"+m[3]) {
				t.Errorf("%s: %s has no section %q", p.path, to, m[3])
			}
		}
	}
	if links < 50 {
		t.Errorf("found %d links", links)
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

// Every file with planted bugs is in the table of invariants.md.
func TestPlantedFilesAreListed(t *testing.T) {
	files, err := filepath.Glob("../internal/planted/*_test.go")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	page := read(t, "invariants.md")
	for _, f := range files {
		if name := filepath.Base(f); strings.Contains(read(t, f), "Bugs = []bug{") != strings.Contains(page, "\n| `"+name+"` | ") {
			t.Errorf("%s: its bugs and the table of invariants.md do not agree", name)
		}
	}
}
