package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "drtmx"

// source is one Go file of the module, whatever its build tags.
type source struct {
	path    string // relative to the module's root
	pkg     string // directory, relative to the module's root
	test    bool
	imports []string
	lines   int
	file    *ast.File
	fset    *token.FileSet
}

// at returns the position of a node, for messages.
func (s *source) at(n ast.Node) string {
	p := s.fset.Position(n.Pos())
	return s.path + ":" + strconv.Itoa(p.Line)
}

var parseOnce = sync.OnceValues(func() ([]*source, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	var all []*source
	fset := token.NewFileSet()
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "vendor") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		s, err := parse(fset, root, path)
		if err == nil {
			all = append(all, s)
		}
		return err
	})
	return all, err
})

func parse(fset *token.FileSet, root, path string) (*source, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	file, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return nil, err
	}
	s := &source{
		path: rel, pkg: filepath.ToSlash(filepath.Dir(rel)), test: strings.HasSuffix(rel, "_test.go"),
		lines: strings.Count(string(text), "\n"), file: file, fset: fset,
	}
	for _, imp := range file.Imports {
		p, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			return nil, err
		}
		s.imports = append(s.imports, p)
	}
	return s, nil
}

// sources are all Go files of the module.
func sources(t *testing.T) []*source {
	t.Helper()
	all, err := parseOnce()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("no Go files found")
	}
	return all
}

// importName is the identifier that a file uses for an import, "" if it does not import it.
func (s *source) importName(path string) string {
	for _, imp := range s.file.Imports {
		if imp.Path.Value != strconv.Quote(path) {
			continue
		}
		if imp.Name != nil {
			return imp.Name.Name
		}
		base := path[strings.LastIndex(path, "/")+1:]
		if strings.HasPrefix(base, "v") && strings.Trim(base[1:], "0123456789") == "" {
			dir := strings.TrimSuffix(path, "/"+base)
			base = dir[strings.LastIndex(dir, "/")+1:]
		}
		return base
	}
	return ""
}

// uses calls found for every selector name.Sel of an imported package.
func (s *source) uses(path string, found func(sel *ast.SelectorExpr)) {
	name := s.importName(path)
	if name == "" {
		return
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok && id.Name == name {
				found(sel)
			}
		}
		return true
	})
}
