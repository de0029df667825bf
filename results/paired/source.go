package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// source counts what a commit consists of.
type source struct {
	packages, files, lines int // without tests
	testLines              int
	exported               int            // names: types, functions, variables, constants, methods and fields of exported types
	public                 map[string]int // of which: those of the packages that programs import
	types                  map[string]size
}

// size is how many fields and methods a type has.
type size struct{ fields, methods int }

// publicPackages are those that programs import.
var publicPackages = []string{"txn", "tables", "server"}

// count counts the Go files of a tree.
func count(root string) (source, error) {
	s := source{public: map[string]int{}, types: map[string]size{}}
	seen := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && (name == "bin" || name == "testdata" || strings.HasPrefix(name, ".") && path != root) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		lines := fset.File(f.FileStart).LineCount()
		if strings.HasSuffix(path, "_test.go") {
			s.testLines += lines
			return nil
		}
		s.files++
		s.lines += lines
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		if !seen[rel] {
			seen[rel] = true
			s.packages++
		}
		s.add(rel, f)
		return nil
	})
	return s, err
}

// add counts the declarations of a file.
func (s *source) add(pkg string, f *ast.File) {
	exported := 0
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			receiver := ""
			if d.Recv != nil {
				receiver = receiverOf(d.Recv.List[0].Type)
				t := s.types[pkg+"."+receiver]
				t.methods++
				s.types[pkg+"."+receiver] = t
			}
			if d.Name.IsExported() && (receiver == "" || ast.IsExported(receiver)) {
				exported++
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch x := spec.(type) {
				case *ast.ValueSpec:
					for _, n := range x.Names {
						if n.IsExported() {
							exported++
						}
					}
				case *ast.TypeSpec:
					if x.Name.IsExported() {
						exported++
					}
					st, ok := x.Type.(*ast.StructType)
					if !ok {
						continue
					}
					t := s.types[pkg+"."+x.Name.Name]
					for _, field := range st.Fields.List {
						t.fields += max(len(field.Names), 1)
						for _, n := range field.Names {
							if n.IsExported() && x.Name.IsExported() {
								exported++
							}
						}
					}
					s.types[pkg+"."+x.Name.Name] = t
				}
			}
		}
	}
	s.exported += exported
	if slices.Contains(publicPackages, pkg) {
		s.public[pkg] += exported
	}
}

// receiverOf returns the name of the type of a receiver.
func receiverOf(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.StarExpr:
		return receiverOf(x.X)
	case *ast.IndexExpr:
		return receiverOf(x.X)
	case *ast.IndexListExpr:
		return receiverOf(x.X)
	case *ast.Ident:
		return x.Name
	}
	return "?"
}

// largest returns the types with the most methods of either commit.
func largest(sides [2]side, n int) []string {
	methods := map[string]int{}
	for _, s := range sides {
		for name, t := range s.source.types {
			methods[name] = max(methods[name], t.methods)
		}
	}
	names := make([]string, 0, len(methods))
	for name := range methods {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if d := methods[b] - methods[a]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return names[:min(n, len(names))]
}
