package lint

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

const (
	maxFileLines     = 1000
	maxFunctionLines = 70
	// minShortShare is the share of functions that must not exceed
	// maxFunctionLines.
	minShortShare = 0.95
)

// unsafeHomes lists the packages that may import unsafe outside tests. internal/sim,
// which only tests use, reads the labels of goroutines.
var unsafeHomes = []string{"internal/mem", "internal/sim"}

// printer reports whether a file may write to standard output and end the
// process.
func printer(f *source) bool {
	return f.test || strings.HasPrefix(f.pkg, "cmd/") || slices.Contains([]string{"results/peers", "results/longreads", "results/durability", "results/replication", "results/failovers", "results/paired", "results/papers", "results/indexes", "internal/command", "server/serve", "internal/sim/simulate"}, f.pkg)
}

func TestUnsafeStaysInMem(t *testing.T) {
	for _, f := range sources(t) {
		if !f.test && slices.Contains(f.imports, "unsafe") && !slices.Contains(unsafeHomes, f.pkg) {
			t.Errorf("%s: imports unsafe", f.path)
		}
	}
}

func TestFilesAndFunctionsAreShort(t *testing.T) {
	functions, long := 0, []string{}
	for _, f := range sources(t) {
		if f.lines > maxFileLines {
			t.Errorf("%s: %d lines, want at most %d", f.path, f.lines, maxFileLines)
		}
		for _, d := range f.file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			functions++
			if n := f.fset.Position(fn.End()).Line - f.fset.Position(fn.Pos()).Line + 1; n > maxFunctionLines {
				long = append(long, f.at(fn)+" "+fn.Name.Name)
			}
		}
	}
	if share := 1 - float64(len(long))/float64(functions); share < minShortShare {
		t.Errorf("%.1f %% of functions keep to %d lines, want %.0f %%; longer: %s",
			share*100, maxFunctionLines, minShortShare*100, strings.Join(long, ", "))
	}
}

// Randomness comes from seeded streams, so that a failing run can be repeated.
func TestRandomnessIsSeeded(t *testing.T) {
	constructors := []string{"New", "NewPCG", "NewChaCha8", "NewZipf", "Rand", "Source", "PCG", "ChaCha8", "Zipf"}
	for _, f := range sources(t) {
		if slices.Contains(f.imports, "math/rand") {
			t.Errorf("%s: imports math/rand; use internal/rng", f.path)
		}
		f.uses("math/rand/v2", func(sel *ast.SelectorExpr) {
			if !slices.Contains(constructors, sel.Sel.Name) {
				t.Errorf("%s: rand.%s draws from the global source", f.at(sel), sel.Sel.Name)
			}
		})
	}
}

func TestLibrariesNeitherPrintNorExit(t *testing.T) {
	for _, f := range sources(t) {
		if printer(f) {
			continue
		}
		f.uses("fmt", func(sel *ast.SelectorExpr) {
			if strings.HasPrefix(sel.Sel.Name, "Print") {
				t.Errorf("%s: fmt.%s in a library", f.at(sel), sel.Sel.Name)
			}
		})
		f.uses("os", func(sel *ast.SelectorExpr) {
			if sel.Sel.Name == "Exit" {
				t.Errorf("%s: os.Exit in a library", f.at(sel))
			}
		})
		f.uses("log", func(sel *ast.SelectorExpr) {
			t.Errorf("%s: log.%s in a library; return an error or a snapshot", f.at(sel), sel.Sel.Name)
		})
		ast.Inspect(f.file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if id, ok := call.Fun.(*ast.Ident); ok && (id.Name == "print" || id.Name == "println") {
					t.Errorf("%s: %s in a library", f.at(call), id.Name)
				}
			}
			return true
		})
	}
}

// Metrics go through a registry that the command injects: a library that
// registers on import cannot be embedded twice.
func TestMetricsAreNotRegisteredGlobally(t *testing.T) {
	const prometheus = "github.com/prometheus/client_golang/prometheus"
	global := []string{"MustRegister", "Register", "Unregister", "DefaultRegisterer", "DefaultGatherer"}
	for _, f := range sources(t) {
		if slices.Contains(f.imports, prometheus+"/promauto") {
			t.Errorf("%s: imports promauto", f.path)
		}
		f.uses(prometheus, func(sel *ast.SelectorExpr) {
			if slices.Contains(global, sel.Sel.Name) {
				t.Errorf("%s: prometheus.%s is the global registry", f.at(sel), sel.Sel.Name)
			}
		})
		if f.importName(prometheus) == "" {
			continue
		}
		for _, d := range f.file.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: init beside metrics", f.at(fn))
			}
		}
	}
}

// Only the exporter imports Prometheus, and a library logs only to the logger
// that its caller passes.
func TestLibrariesKnowNoExporterAndNoDefaultLogger(t *testing.T) {
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		for _, imp := range f.imports {
			if strings.HasPrefix(imp, "github.com/prometheus/") && !slices.Contains([]string{"internal/metrics", "server/metrics", "internal/command"}, f.pkg) && !strings.HasPrefix(f.pkg, "cmd/") {
				t.Errorf("%s: imports %s", f.path, imp)
			}
		}
		f.uses("log/slog", func(sel *ast.SelectorExpr) {
			global := []string{"Default", "SetDefault", "Debug", "Info", "Warn", "Error", "Log", "LogAttrs", "With", "DebugContext", "InfoContext", "WarnContext", "ErrorContext"}
			if slices.Contains(global, sel.Sel.Name) {
				t.Errorf("%s: slog.%s is the default logger's", f.at(sel), sel.Sel.Name)
			}
		})
	}
}

// A typed atomic allows no plain access and cannot be misaligned.
func TestAtomicsAreTyped(t *testing.T) {
	for _, f := range sources(t) {
		if f.pkg == "internal/mem" {
			continue
		}
		f.uses("sync/atomic", func(sel *ast.SelectorExpr) {
			for _, verb := range []string{"Load", "Store", "Add", "Swap", "CompareAndSwap", "And", "Or"} {
				if strings.HasPrefix(sel.Sel.Name, verb) {
					t.Errorf("%s: atomic.%s; use a typed atomic", f.at(sel), sel.Sel.Name)
				}
			}
		})
	}
}
