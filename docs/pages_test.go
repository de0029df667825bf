package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// page is a Markdown file of the repository.
type page struct {
	path      string // from the root of the repository
	text      string
	generated bool // written by a script of results: lines are as long as they are
}

// prose is the text without blocks of code.
func (p *page) prose() string {
	var lines []string
	for _, l := range p.lines() {
		if !l.code {
			lines = append(lines, l.text)
		}
	}
	return strings.Join(lines, "\n")
}

// line is a line of a page.
type line struct {
	number int
	text   string
	code   bool // in a block of code
}

func (p *page) lines() (all []line) {
	fenced := false
	for i, text := range strings.Split(p.text, "\n") {
		fence := strings.HasPrefix(strings.TrimSpace(text), "```")
		all = append(all, line{i + 1, text, fenced || fence || strings.HasPrefix(text, "    ")})
		fenced = fenced != fence
	}
	return all
}

// spans are the pieces of code in the prose, without their backquotes. They may
// cross the end of a line.
func (p *page) spans() (all []string) {
	for _, m := range codeSpan.FindAllStringSubmatch(p.prose(), -1) {
		all = append(all, strings.Join(strings.Fields(m[1]), " "))
	}
	return all
}

var codeSpan = regexp.MustCompile("`([^`]+)`")

// commands are the spans and the lines of blocks of code, without comments. Lines
// that a backslash joins are one.
func (p *page) commands() (all []string) {
	joined := ""
	for _, l := range p.lines() {
		if !l.code {
			continue
		}
		text, _, _ := strings.Cut(l.text, " # ")
		if more, ok := strings.CutSuffix(text, "\\"); ok {
			joined += more
			continue
		}
		all = append(all, strings.TrimSpace(joined+text))
		joined = ""
	}
	return append(all, p.spans()...)
}

// repository is what its pages may name.
type repository struct {
	pages []*page
	files map[string]bool            // by path from the root, directories included
	bases map[string]bool            // names of files without their directories
	funcs map[string]map[string]bool // functions by directory of their package
	names map[string]map[string]bool // what packages declare, by name of the package
	types map[string]map[string]bool // fields and methods of types, by name of the type
	words map[string]bool            // strings of the Go files
}

const root = ".."

// look returns the repository, which is read once and not changed.
func look(t *testing.T) *repository {
	t.Helper()
	r, err := looked()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.pages) < 10 || len(r.funcs) < 30 {
		t.Fatalf("%d pages and %d packages: the test looks in the wrong place", len(r.pages), len(r.funcs))
	}
	return r
}

var looked = sync.OnceValues(func() (*repository, error) {
	r := &repository{
		files: map[string]bool{}, bases: map[string]bool{}, words: map[string]bool{},
		funcs: map[string]map[string]bool{}, names: map[string]map[string]bool{}, types: map[string]map[string]bool{},
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".ci" && rel != "." {
			return filepath.SkipDir
		}
		r.files[rel] = true
		if d.IsDir() {
			return nil
		}
		r.bases[d.Name()] = true
		switch filepath.Ext(rel) {
		case ".md":
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text := string(b)
			r.pages = append(r.pages, &page{path: rel, text: text, generated: strings.Contains(text, "\nWritten by `results/")})
		case ".go":
			return r.declare(path, filepath.ToSlash(filepath.Dir(rel)))
		}
		return nil
	})
	return r, err
})

// declare takes in what a Go file declares.
func (r *repository) declare(path, dir string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	pkg := strings.TrimSuffix(file.Name.Name, "_test")
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				add(r.types, receiver(d.Recv.List[0].Type), d.Name.Name)
				continue
			}
			add(r.funcs, dir, d.Name.Name)
			add(r.names, pkg, d.Name.Name)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				r.declareSpec(pkg, s)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			r.words[strings.Trim(lit.Value, "\"`")] = true
		}
		return true
	})
	return nil
}

func (r *repository) declareSpec(pkg string, s ast.Spec) {
	switch s := s.(type) {
	case *ast.ValueSpec:
		for _, id := range s.Names {
			add(r.names, pkg, id.Name)
		}
	case *ast.TypeSpec:
		add(r.names, pkg, s.Name.Name)
		var list *ast.FieldList
		switch typ := s.Type.(type) {
		case *ast.StructType:
			list = typ.Fields
		case *ast.InterfaceType:
			list = typ.Methods
		default:
			add(r.types, s.Name.Name, "")
			return
		}
		add(r.types, s.Name.Name, "")
		for _, f := range list.List {
			for _, id := range f.Names {
				add(r.types, s.Name.Name, id.Name)
			}
			if len(f.Names) == 0 {
				add(r.types, s.Name.Name, receiver(f.Type))
			}
		}
	}
}

func add(m map[string]map[string]bool, key, value string) {
	if m[key] == nil {
		m[key] = map[string]bool{}
	}
	m[key][value] = true
}

// receiver is the name of the type of a receiver or an embedded field.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

var (
	testName   = regexp.MustCompile(`^(?:Test|Fuzz|Benchmark|Example)[A-Z_][A-Za-z0-9_]*`)
	testOf     = regexp.MustCompile("`([a-z][a-z0-9/]*)`:\\s+`((?:Test|Fuzz|Benchmark)[A-Za-z0-9_]*)")
	testFamily = []string{"TestMutated"} // a beginning of names
)

// Every test that a page names exists, in the package that the page gives it.
func TestPagesNameTestsThatExist(t *testing.T) {
	r := look(t)
	named := 0
	for _, p := range r.pages {
		for _, m := range testOf.FindAllStringSubmatch(p.prose(), -1) {
			if named++; !r.funcs[m[1]][m[2]] {
				t.Errorf("%s: there is no test %s in %s", p.path, m[2], m[1])
			}
		}
		for _, span := range p.spans() {
			name := testName.FindString(span)
			if name == "" || slices.Contains(testFamily, name) {
				continue
			}
			found := false
			for _, funcs := range r.funcs {
				found = found || funcs[name]
			}
			if !found {
				t.Errorf("%s: there is no test %s", p.path, name)
			}
		}
	}
	if named < 200 {
		t.Errorf("found %d tests with their packages, want those of invariants.md", named)
	}
}

var (
	pathName = regexp.MustCompile(`^(?:drtmx/)?([A-Za-z0-9_.*-]+(?:/[A-Za-z0-9_.*-]+)*)/?$`)
	fileName = regexp.MustCompile(`^[A-Za-z0-9_]+\.(?:go|sh|md)$`)
)

// Every file, directory and package that a page names exists.
func TestPagesNameFilesThatExist(t *testing.T) {
	r := look(t)
	named := 0
	for _, p := range r.pages {
		for _, span := range p.spans() {
			span, _, _ = strings.Cut(span, " ")
			m := pathName.FindStringSubmatch(strings.TrimPrefix(span, "./"))
			if m == nil {
				continue
			}
			first, _, below := strings.Cut(m[1], "/")
			switch {
			case below && r.files[first] && r.exists(m[1]):
				named++
			case below && r.files[first], fileName.MatchString(span) && !r.bases[span] && !r.files[filepath.Join(filepath.Dir(p.path), span)]:
				t.Errorf("%s: there is no %s", p.path, span)
			}
		}
	}
	if named < 100 {
		t.Errorf("found %d paths", named)
	}
}

// exists reports whether there is a file with a path, or that a pattern matches.
func (r *repository) exists(path string) bool {
	if r.files[path] {
		return true
	}
	files, err := filepath.Glob(filepath.Join(root, path))
	return err == nil && len(files) > 0
}

var (
	goName = regexp.MustCompile(`^\*?([A-Za-z][A-Za-z0-9]*)\.([A-Za-z][A-Za-z0-9]*)(?:\.([A-Za-z][A-Za-z0-9]*))?(?:[({].*)?$`)
	endsOf = []string{"go", "md", "sh", "json", "jsonl", "toml", "html", "csv", "log", "sock", "pem", "hgrm", "hlog", "base", "addr", "yml"}
)

// Every Go name with a dot that a page mentions is declared: a name of a package, or a
// field or method of a type.
func TestPagesNameWhatIsDeclared(t *testing.T) {
	r := look(t)
	named := 0
	for _, p := range r.pages {
		for _, span := range p.spans() {
			m := goName.FindStringSubmatch(span)
			if m == nil || slices.Contains(endsOf, m[2]) || r.words[span] {
				continue // a file, or a property
			}
			pkg, typ := r.names[m[1]], r.types[m[1]]
			if pkg == nil && typ == nil {
				continue // of another program
			}
			named++
			known := pkg[m[2]] && (m[3] == "" || r.types[m[2]][m[3]]) || typ[m[2]] && m[3] == ""
			if !known {
				t.Errorf("%s: nothing declares %s", p.path, span)
			}
		}
	}
	if named < 50 {
		t.Errorf("found %d names", named)
	}
}
