package docs

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// Lines of prose are short, so that changes of them can be read. Tables and blocks of
// code cannot be broken, and what a script of results has written need not be.
func TestLinesOfPagesAreShort(t *testing.T) {
	const most = 100
	for _, p := range look(t).pages {
		for _, l := range p.lines() {
			if n := utf8.RuneCountInString(l.text); n > most && !p.generated && !l.code && !strings.HasPrefix(l.text, "|") {
				t.Errorf("%s:%d: %d characters, want at most %d", p.path, l.number, n, most)
			}
		}
	}
}
