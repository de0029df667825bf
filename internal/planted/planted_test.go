package planted

import (
	"context"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"drtmx/internal/testseed"
)

// apply returns the files that the bug changes, by path, with its edits made.
func (b *bug) apply() (map[string]string, error) {
	files := map[string]string{}
	for i, e := range b.edits {
		text, ok := files[e.file]
		if !ok {
			raw, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				return nil, err
			}
			text = string(raw)
		}
		if n := strings.Count(text, e.old); n != 1 {
			return nil, fmt.Errorf("edit %d: %s has the old text %d times, want once:\n%s", i, e.file, n, e.old)
		}
		files[e.file] = strings.Replace(text, e.old, e.new, 1)
	}
	for file, text := range files {
		if _, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution); err != nil {
			return nil, fmt.Errorf("after the edits: %w", err)
		}
	}
	return files, nil
}

// root is the root of the module.
const root = "../.."

// TestEditsApply checks that the table fits the source as it is.
func TestEditsApply(t *testing.T) {
	names := map[string]bool{}
	for _, b := range bugs {
		if names[b.name] || b.name == "" || b.why == "" || len(b.edits) == 0 || len(b.caught) == 0 && !isSimulated(b.name) {
			t.Errorf("%s: the name is not unique, or something is missing", b.name)
		}
		names[b.name] = true
		if _, err := b.apply(); err != nil {
			t.Errorf("%s: %v", b.name, err)
		}
		for _, c := range b.caught {
			if err := c.exists(); err != nil {
				t.Errorf("%s: %v", b.name, err)
			}
		}
	}
}

// exists looks for the test's function among the sources of its package.
func (c *test) exists() error {
	if _, err := regexp.Compile(c.want); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(root, c.pkg, "*_test.go"))
	if err != nil {
		return err
	}
	function, _, _ := strings.Cut(c.name, "/")
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if strings.Contains(string(raw), "\nfunc "+function+"(") {
			return nil
		}
	}
	return fmt.Errorf("package %s has no test %s", c.pkg, function)
}

// bound is the time within which a test must fail because of a bug, and it has
// as long again to end. Random tests run one seed after another for half of it.
const bound = time.Minute

// tries is how often a test may run with a bug until it fails: what a random test meets
// depends on the machine. The first run is as short as in make test, the others are as
// long as in a soak.
const tries = 4

// TestBugsAreCaught builds every bug whose name matches the environment
// variable DRTMX_PLANTED. Each of its tests must pass without the bug, and fail
// with it for the expected reason. DRTMX_PLANTED_SHARE, as 0/2 or 1/2, leaves out
// all but a share of them, and says how many. DRTMX_PLANTED_IN is a regular
// expression: all tests of a bug must be in packages that it matches.
func TestBugsAreCaught(t *testing.T) {
	pattern, ok := os.LookupEnv("DRTMX_PLANTED")
	if !ok {
		t.Skip("runs the tests of every bug, which takes minutes: set DRTMX_PLANTED to a regular expression, or use make planted")
	}
	chosen, in := regexp.MustCompile(pattern), regexp.MustCompile(os.Getenv("DRTMX_PLANTED_IN"))
	builds := newBuilds(t)
	of, shares := testseed.Share(t, "DRTMX_PLANTED_SHARE")
	ran, others := 0, 0
	for i, b := range bugs {
		if !chosen.MatchString(b.name) || len(b.caught) == 0 ||
			slices.ContainsFunc(b.caught, func(c test) bool { return !in.MatchString(c.pkg) }) {
			continue
		}
		if i%shares != of {
			others++
			continue
		}
		ran++
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			t.Log(b.why)
			wrong, sound := builds.with(t, &b)
			for _, c := range b.caught {
				c.check(t, sound, wrong)
			}
		})
	}
	if ran == 0 {
		t.Fatalf("no bug matches DRTMX_PLANTED=%q", pattern)
	}
	t.Logf("%d bugs, and %d that are in other shares", ran, others)
}

// check runs the test without the bug and with it.
func (c *test) check(t *testing.T, sound, wrong *binaries) {
	t.Helper()
	start := time.Now()
	var out string
	var err error
	try, length := 0, short
	for ; err == nil && try < tries; try++ {
		if try > 0 {
			length = full
		}
		out, err = wrong.run(t, c, length, "DRTMX_SIM="+(bound/2).String(), "DRTMX_PATIENCE="+(bound/3).String())
	}
	took := time.Since(start).Round(time.Millisecond)
	if out, err := sound.pass(t, c, length); err != nil {
		t.Fatalf("%s fails without the bug: %v\n%s", c.name, err, out)
	}
	switch {
	case err == nil:
		t.Errorf("%s: %s passes with the bug, %d times", c.pkg, c.name, try)
		return
	case !strings.Contains(out, "--- FAIL"):
		t.Errorf("%s: %s broke after %v and did not fail: %v\n%s", c.pkg, c.name, took, err, out)
		return
	}
	found := regexp.MustCompile(c.want).FindString(out)
	if found == "" {
		t.Errorf("%s: %s failed, but not for the reason %q:\n%s", c.pkg, c.name, c.want, out)
		return
	}
	t.Logf("%s: %s failed after %v, in run %d: %s", c.pkg, c.name, took, try, strings.TrimSpace(found))
}

// builds are the builds of package after package that a run of bugs needs.
type builds struct {
	all     *switched
	plain   *binaries // without any bug
	shared  *binaries // with all bugs of one build
	overlay string    // of shared
}

func newBuilds(t *testing.T) *builds {
	t.Helper()
	all, err := switchAll(bugs)
	if err != nil {
		t.Fatal(err)
	}
	b := &builds{all: all, plain: newBinaries(t, "")}
	if b.overlay, err = all.write(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	b.shared = newBinaries(t, b.overlay)
	return b
}

// with returns binaries with one bug, and others without it.
func (b *builds) with(t *testing.T, x *bug) (wrong, sound *binaries) {
	t.Helper()
	if n := b.all.numbers[x.name]; n > 0 {
		return &binaries{dir: b.shared.dir, overlay: b.overlay, bug: n, built: b.shared.built}, b.shared
	}
	return newBinaries(t, x.overlay(t)), b.plain
}

// binaries builds and keeps the test binaries of packages.
type binaries struct {
	dir     string
	overlay string // path of the overlay, "" if there is none
	bug     int    // that is chosen of those of one build; 0: none
	*built
}

// built are the packages that have been built, and the tests that have passed.
type built struct {
	mu       sync.Mutex
	packages map[string]error
	passed   map[passing]func() result
}

// passing is a test without a bug.
type passing struct {
	pkg, name string
	length    length
}

type result struct {
	out string
	err error
}

func newBinaries(t *testing.T, overlay string) *binaries {
	t.Helper()
	return &binaries{dir: t.TempDir(), overlay: overlay, built: &built{packages: map[string]error{}, passed: map[passing]func() result{}}}
}

// overlay writes an overlay with the bug, and returns its path.
func (b *bug) overlay(t *testing.T) string {
	t.Helper()
	files, err := b.apply()
	if err != nil {
		t.Fatal(err)
	}
	s := &switched{replace: map[string]string{}}
	for file, text := range files {
		path, err := filepath.Abs(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		s.replace[path] = text
	}
	path, err := s.write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// build returns the test binary of a package.
func (s *binaries) build(t *testing.T, pkg string) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	binary := filepath.Join(s.dir, strings.ReplaceAll(pkg, "/", "_")+".test")
	err, done := s.packages[pkg]
	if !done {
		// Neither vet nor debug information: most of the time goes into builds.
		args := []string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary}
		if s.overlay != "" {
			args = append(args, "-overlay", s.overlay)
		}
		cmd := exec.Command("go", append(args, "./"+pkg)...)
		cmd.Dir = root
		var out []byte
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		s.packages[pkg] = err
	}
	if err != nil {
		t.Fatalf("build of %s: %v", pkg, err)
	}
	return binary
}

// environ is the environment of programs that have the bug.
func (s *binaries) environ() []string {
	return append(os.Environ(), fmt.Sprintf("%s=%d", switchVariable, s.bug))
}

// length of a test: that of make test, or of a soak.
type length string

const (
	short length = "DRTMX_SOAK=0"
	full  length = "DRTMX_SOAK=1"
)

// pass runs a test that must pass, once for all bugs that it catches.
func (s *binaries) pass(t *testing.T, c *test, l length) (string, error) {
	t.Helper()
	key := passing{pkg: c.pkg, name: c.name, length: l}
	s.mu.Lock()
	run := s.passed[key]
	if run == nil {
		run = sync.OnceValue(func() (r result) {
			r.out, r.err = s.run(t, c, l)
			if r.err == nil && !strings.Contains(r.out, "--- PASS") {
				r.err = fmt.Errorf("no test ran")
			}
			return r
		})
		s.passed[key] = run
	}
	s.mu.Unlock()
	r := run()
	return r.out, r.err
}

// run runs one test with further variables in its environment.
func (s *binaries) run(t *testing.T, c *test, l length, env ...string) (string, error) {
	t.Helper()
	binary := s.build(t, c.pkg)
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound+10*time.Second)
	defer cancel()
	var pattern []string
	for part := range strings.SplitSeq(c.name, "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(strings.ReplaceAll(part, " ", "_"))+"$")
	}
	cmd := exec.CommandContext(ctx, binary, "-test.run="+strings.Join(pattern, "/"), "-test.v", "-test.failfast",
		"-test.timeout="+(2*bound).String())
	cmd.Dir = filepath.Join(root, c.pkg)
	cmd.Env = append(append(s.environ(), string(l)), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
