package lint

import (
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// notEnglish are words that do not exist, and phrases without a subject or with
// a meaning of their own where the field has a term. Each has what to write
// instead.
var notEnglish = []struct {
	phrase  *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`\bleafs\b`), "leaves"},
	{regexp.MustCompile(`\brefreshs\b`), "refreshes"},
	{regexp.MustCompile(`\bovertaken\b|\bovertook\b`), "invalidated, invalidates"},
	{regexp.MustCompile(`\bstood together\b`), "a consistent snapshot"},
	{regexp.MustCompile(`\bowed\b`), "pending"},
	{regexp.MustCompile(`\bsaid so\b`), "the verb that fits: reported, confirmed"},
	{regexp.MustCompile(`\baloud\b`), "with a message"},
	{regexp.MustCompile(`\bwhat [^.;:]* (?:came|comes) to\b|\b(?:has|have) come to\b`), "the noun: the verdict on X, the result of X"},
	{regexp.MustCompile(`\b[Ww]hoever\b`), "the actor: the client, the caller"},
	{regexp.MustCompile(`(?:^|[.:;,(] )[Ww]ho (?:asks|calls|comes|dials|gets|has|holds|is|knows|reads|uses|waits|wants|watches|writes)\b`), "the actor: the client, the caller"},
	{regexp.MustCompile(`\b(?:to|by) who\b`), "the actor: the client, the caller"},
	{regexp.MustCompile(`\btrying out\b`), "experiments"},
	{regexp.MustCompile(`\bin earnest\b`), "in production"},
}

// notNames are participles. A function is named for what it does, a variable or
// a field for what it holds.
var notNames = regexp.MustCompile(`^(?:gauged|complied|told|shown|owed|meant|dialled|leafs|refreshs)$`)

// TestEnglish fails on words and phrases that the project's texts do not use, in
// comments, messages and names of Go files, and in Markdown.
func TestEnglish(t *testing.T) {
	for _, f := range sources(t) {
		if f.pkg == "internal/lint" {
			continue // this file
		}
		for _, group := range f.file.Comments {
			for _, fault := range badEnglish(group.Text()) {
				t.Errorf("%s: %s", f.at(group), fault)
			}
		}
		if !f.test {
			checkWords(t, f)
		}
	}
	for path, text := range markdown(t) {
		for _, fault := range badEnglish(text) {
			t.Errorf("%s: %s", path, fault)
		}
	}
}

// checkWords checks the messages and the declared names of a file.
func checkWords(t *testing.T, f *source) {
	name := func(id *ast.Ident) {
		if id != nil && notNames.MatchString(id.Name) {
			t.Errorf("%s: the name %s is a participle: name what it does or holds", f.at(id), id.Name)
		}
	}
	ast.Inspect(f.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil {
				for _, fault := range badEnglish(text) {
					t.Errorf("%s: %s", f.at(n), fault)
				}
			}
		case *ast.FuncDecl:
			name(n.Name)
		case *ast.Field:
			for _, id := range n.Names {
				name(id)
			}
		case *ast.ValueSpec:
			for _, id := range n.Names {
				name(id)
			}
		case *ast.AssignStmt:
			for _, e := range n.Lhs {
				if id, ok := e.(*ast.Ident); ok && n.Tok == token.DEFINE {
					name(id)
				}
			}
		}
		return true
	})
}

// badEnglish lists the faults of a text, whose lines may break anywhere.
func badEnglish(text string) (faults []string) {
	text = strings.Join(strings.Fields(text), " ")
	for _, p := range notEnglish {
		for _, at := range p.phrase.FindAllStringIndex(text, -1) {
			faults = append(faults, "…"+text[max(at[0]-30, 0):min(at[1]+10, len(text))]+"…: write "+p.instead)
		}
	}
	return faults
}

// markdown returns the text of all Markdown files, without program output.
func markdown(t *testing.T) map[string]string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".md"):
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		all[rel] = fences.ReplaceAllString(string(b), "")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 5 {
		t.Fatalf("found %d Markdown files, want those of docs and results", len(all))
	}
	return all
}

// fences match blocks of program output.
var fences = regexp.MustCompile("(?s)\n```.*?\n```")

// The check finds what it looks for, also across a line break.
func TestEnglishFindsFaults(t *testing.T) {
	for text, want := range map[string]int{
		"The leaves are refreshed.":                        0,
		"all leafs of it":                                  1,
		"what one READ of a leaf came\nto, as seen":        1,
		"Who watches gets the newest state.":               1,
		"The server notifies the client, which waits.":     0,
		"A View that writers overtook; whoever asks waits": 2,
	} {
		if got := badEnglish(text); len(got) != want {
			t.Errorf("%q: %q, want %d faults", text, got, want)
		}
	}
}
