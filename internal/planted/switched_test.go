package planted

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// switchVariable is the environment variable that says which bug a program has that was
// built with all of them: its number, from 1 on.
const switchVariable = "DRTMX_PLANTED_BUG"

// switched are the bugs of one build: each changes bodies of functions and nothing else.
// A function with bugs has a variant for each, which it calls if that bug is chosen. So
// a package is built once, not once for each bug.
type switched struct {
	replace map[string]string // an overlay: the contents of files, by absolute path
	numbers map[string]int    // of the bugs, by name
}

// variant is a function as one bug makes it.
type variant struct {
	bug  int
	body string
}

// errNotABody is why a bug is not among those of one build.
var errNotABody = errors.New("the bug changes more than bodies of functions")

// switchAll makes one build of as many bugs as possible.
func switchAll(bugs []bug) (*switched, error) {
	s := &switched{replace: map[string]string{}, numbers: map[string]int{}}
	sources := map[string]*source{}
	for i := range bugs {
		changed, err := bugs[i].apply()
		if err != nil {
			return nil, err
		}
		found := map[*source]map[string]string{}
		for file, text := range changed {
			if sources[file] == nil {
				if sources[file], err = parseSource(file, ""); err != nil {
					return nil, err
				}
			}
			after, err := parseSource(file, text)
			if err != nil {
				return nil, err
			}
			if found[sources[file]], err = sources[file].bodiesThatDiffer(after); err != nil {
				found = nil
				break
			}
		}
		if found == nil {
			continue
		}
		n := i + 1
		s.numbers[bugs[i].name] = n
		for of, bodies := range found {
			for function, body := range bodies {
				of.variants[function] = append(of.variants[function], variant{n, body})
			}
		}
	}
	for file, of := range sources {
		text, err := of.withVariants()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		path, err := filepath.Abs(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		s.replace[path] = text
		s.replace[filepath.Join(filepath.Dir(path), "planted.go")] = fmt.Sprintf(`package %s

import (
	"os"
	"strconv"
)

var plantedBug, _ = strconv.Atoi(os.Getenv(%q))
`, of.file.Name.Name, switchVariable)
	}
	return s, nil
}

// write writes the overlay into a directory, and returns its path.
func (s *switched) write(dir string) (string, error) {
	replace := map[string]string{}
	for i, path := range slices.Sorted(maps.Keys(s.replace)) {
		to := filepath.Join(dir, fmt.Sprintf("%d_%s", i, filepath.Base(path)))
		if err := os.WriteFile(to, []byte(s.replace[path]), 0o600); err != nil {
			return "", err
		}
		replace[path] = to
	}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, raw, 0o600)
}

// source is a file of the engine.
type source struct {
	text      string
	fset      *token.FileSet
	file      *ast.File
	functions map[string]*ast.FuncDecl
	variants  map[string][]variant // by function
}

// parseSource parses a file, of the text if that is not empty.
func parseSource(file, text string) (*source, error) {
	if text == "" {
		raw, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		text = string(raw)
	}
	s := &source{text: text, fset: token.NewFileSet(), functions: map[string]*ast.FuncDecl{}, variants: map[string][]variant{}}
	var err error
	if s.file, err = parser.ParseFile(s.fset, file, text, parser.ParseComments|parser.SkipObjectResolution); err != nil {
		return nil, err
	}
	for _, d := range s.file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			s.functions[s.nameOf(f)] = f
		}
	}
	return s, nil
}

// between is the text between two places.
func (s *source) between(from, to token.Pos) string {
	return s.text[s.fset.Position(from).Offset:s.fset.Position(to).Offset]
}

// nameOf names a function, and the type of its receiver if it has one.
func (s *source) nameOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	return s.between(f.Recv.List[0].Type.Pos(), f.Recv.List[0].Type.End()) + "." + f.Name.Name
}

// outline is all of a file but the bodies of its functions.
func (s *source) outline() (parts []string) {
	for _, d := range s.file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			parts = append(parts, s.between(f.Pos(), f.Body.Lbrace))
		} else {
			parts = append(parts, s.between(d.Pos(), d.End()))
		}
	}
	return parts
}

// bodiesThatDiffer returns the bodies of those functions that differ in another version
// of the file.
func (s *source) bodiesThatDiffer(after *source) (map[string]string, error) {
	if !slices.Equal(s.outline(), after.outline()) {
		return nil, errNotABody
	}
	bodies := map[string]string{}
	for name, f := range s.functions {
		g := after.functions[name]
		if is := after.between(g.Body.Pos(), g.Body.End()); is != s.between(f.Body.Pos(), f.Body.End()) {
			if name == "init" || f.Type.TypeParams != nil {
				return nil, errNotABody
			}
			bodies[name] = is
		}
	}
	return bodies, nil
}

// withVariants is the file, with variants of its functions.
func (s *source) withVariants() (string, error) {
	var end strings.Builder
	names := slices.SortedFunc(maps.Keys(s.variants), func(a, b string) int { return int(s.functions[b].Pos() - s.functions[a].Pos()) })
	text := s.text
	for _, name := range names {
		f := s.functions[name]
		from, to := s.fset.Position(f.Pos()).Offset, s.fset.Position(f.Body.Lbrace).Offset
		args := namedParameters(f)
		head, err := s.head(f, f.Name.Name)
		if err != nil {
			return "", err
		}
		var calls strings.Builder
		for _, v := range s.variants[name] {
			own := fmt.Sprintf("%s__%d", f.Name.Name, v.bug)
			call := own + "(" + args + ")"
			if f.Recv != nil {
				call = f.Recv.List[0].Names[0].Name + "." + call
			}
			if f.Type.Results != nil {
				call = "return " + call
			} else {
				call += "\n\t\treturn"
			}
			fmt.Fprintf(&calls, "\n\tif plantedBug == %d {\n\t\t%s\n\t}", v.bug, call)
			variantHead, err := s.head(f, own)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&end, "\n%s%s %s\n", directives(f), variantHead, v.body)
		}
		text = text[:from] + head + " {" + calls.String() + "\n" + text[to+1:]
	}
	return text + end.String(), nil
}

// head is a function without its body, under a name.
func (s *source) head(f *ast.FuncDecl, name string) (string, error) {
	var b bytes.Buffer
	err := format.Node(&b, token.NewFileSet(), &ast.FuncDecl{Recv: f.Recv, Name: ast.NewIdent(name), Type: f.Type})
	return strings.ReplaceAll(b.String(), "\n", " "), err
}

// namedParameters gives each parameter and the receiver a name, and returns the
// arguments with which the function calls a variant of itself.
func namedParameters(f *ast.FuncDecl) (args string) {
	n := 0
	name := func(fields *ast.FieldList) (names []string) {
		for _, field := range fields.List {
			if len(field.Names) == 0 {
				field.Names = []*ast.Ident{ast.NewIdent("_")}
			}
			for i, id := range field.Names {
				if id.Name == "_" {
					n++
					field.Names[i] = ast.NewIdent(fmt.Sprintf("unnamed%d", n))
				}
				names = append(names, field.Names[i].Name)
			}
		}
		return names
	}
	if f.Recv != nil {
		name(f.Recv)
	}
	names := name(f.Type.Params)
	if len(names) > 0 {
		if _, variadic := f.Type.Params.List[len(f.Type.Params.List)-1].Type.(*ast.Ellipsis); variadic {
			names[len(names)-1] += "..."
		}
	}
	return strings.Join(names, ", ")
}

// directives are those of a function to the compiler.
func directives(f *ast.FuncDecl) (text string) {
	if f.Doc == nil {
		return ""
	}
	for _, c := range f.Doc.List {
		if strings.HasPrefix(c.Text, "//go:no") {
			text += c.Text + "\n"
		}
	}
	return text
}

// TestSwitchedBugsParse: all bugs of one build are in it, and each file parses.
func TestSwitchedBugsParse(t *testing.T) {
	s, err := switchAll(bugs)
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range s.replace {
		if _, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution); err != nil {
			t.Error(err)
		}
	}
	var alone []string
	for _, b := range bugs {
		if s.numbers[b.name] == 0 {
			alone = append(alone, b.name)
		}
	}
	t.Logf("%d of %d bugs are in one build; not %s", len(s.numbers), len(bugs), strings.Join(alone, ", "))
	if len(alone) > len(bugs)/5 {
		t.Errorf("%d of %d bugs need builds of their own", len(alone), len(bugs))
	}
}
