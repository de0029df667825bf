package planted

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"drtmx/internal/testseed"
)

// TestSurvey simulates clusters of all kinds with each bug in turn, and writes into the
// table that the environment variable DRTMX_PLANTED_TABLE names how many seeds it takes
// to find the bug. Bugs that are in the table already are left as they are, so that a
// survey can go on later. DRTMX_PLANTED_SEEDS is the most seeds for a bug, and
// DRTMX_PLANTED_SIM chooses bugs. With DRTMX_PLANTED_KIND all clusters are of that kind, which the
// rows then say, and rows that do not are made again.
func TestSurvey(t *testing.T) {
	file := os.Getenv("DRTMX_PLANTED_TABLE")
	if file == "" {
		t.Skip("takes hours: set DRTMX_PLANTED_TABLE to a file, or use make sim-survey")
	}
	s := &survey{file: file, seeds: testseed.Number(t, "DRTMX_PLANTED_SEEDS", 200), kind: os.Getenv("DRTMX_PLANTED_KIND"), rows: map[string]string{}}
	if err := s.read(); err != nil {
		t.Fatal(err)
	}
	chosen, simulated, all := regexp.MustCompile(os.Getenv("DRTMX_PLANTED_SIM")), packagesOf(t), newBuilds(t)
	binary := filepath.Join(t.TempDir(), "server.test")
	cmd := exec.CommandContext(t.Context(), "git", "rev-parse", "--short", "HEAD")
	cmd.Dir = root
	raw, err := cmd.Output()
	if err != nil {
		t.Fatalf("the commit that is surveyed: %v", err)
	}
	head := strings.TrimSpace(string(raw))
	for i := range bugs {
		b := &bugs[i]
		if done := s.rows[b.name]; done != "" && strings.Contains(done, s.of()) || !chosen.MatchString(b.name) {
			continue
		}
		found := "not in the program"
		if b.in(simulated) {
			wrong, _ := all.with(t, b)
			use := binary
			if wrong.bug == 0 {
				use = filepath.Join(t.TempDir(), "server.test")
			}
			var err error
			if found, err = s.look(t.Context(), wrong, use); err != nil {
				t.Fatalf("%s: %v", b.name, err)
			}
		}
		t.Logf("%s: %s", b.name, found)
		s.rows[b.name] = fmt.Sprintf("| `%s` | %s | %s | %s | %s |", b.name, b.why, found, head, time.Now().UTC().Format(time.DateOnly))
		if err := s.write(); err != nil {
			t.Fatal(err)
		}
	}
}

// survey is a table of bugs.
type survey struct {
	file  string
	seeds int
	kind  string            // of all clusters, empty if seeds draw it
	rows  map[string]string // by bug
}

// of says of which kind all clusters are.
func (s *survey) of() string {
	if s.kind == "" {
		return ""
	}
	return " of `" + s.kind + "`"
}

// surveyFailures is how many seeds are to find a bug.
const surveyFailures = 5

// look returns which seeds find a bug.
func (s *survey) look(ctx context.Context, with *binaries, binary string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "run", "./internal/sim/simulate", "-overlay", with.overlay, "-binary", binary,
		"-patience", "15s", "-replay", "0", "-seeds", fmt.Sprintf("1-%d", s.seeds), "-failures", fmt.Sprint(surveyFailures), "-kind", s.kind)
	cmd.Dir, cmd.Env = root, with.environ()
	out, err := cmd.CombinedOutput()
	if err == nil {
		return fmt.Sprintf("none of %d", s.seeds) + s.of(), nil
	}
	last := failing.FindSubmatch(out)
	if last == nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	f, err := findsIn(string(last[1]))
	if err != nil {
		return "", err
	}
	if len(f.seeds) < surveyFailures {
		return fmt.Sprintf("%s, in %d", f.short(), s.seeds) + s.of(), nil
	}
	return f.short() + s.of(), nil
}

// read reads the rows of the table, if there is one.
func (s *survey) read() error {
	raw, err := os.ReadFile(s.file)
	if os.IsNotExist(err) {
		return nil
	}
	for line := range strings.Lines(string(raw)) {
		if name, _, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "`"); ok && strings.HasPrefix(line, "| `") {
			s.rows[name] = strings.TrimSpace(line)
		}
	}
	return err
}

// write writes the table.
func (s *survey) write() error {
	var b strings.Builder
	fmt.Fprintf(&b, surveyHead, surveyFailures)
	for _, name := range slices.Sorted(maps.Keys(s.rows)) {
		fmt.Fprintln(&b, s.rows[name])
	}
	return os.WriteFile(s.file, []byte(b.String()), 0o644)
}

const surveyHead = `# How many simulated clusters find a planted bug

Clusters of all kinds, as seeds draw them, are simulated with each bug of
` + "`internal/planted`" + ` in turn, up to the seed in the row, or until %d have failed. How many seeds it
takes is counted from one that finds the bug to the next: the median, and the most. Where a row
names a kind, all clusters are of that kind: bugs of an engine, in clusters with it. Bugs of other
programs are not in simulated clusters. All bugs but those that only the simulator finds have
directed tests as well. Clusters of ` + "`bins` and `twins`" + ` have storms of their own since 55ce53f:
rows of earlier commits are of clusters without them.

Some bugs make a cluster that never ends and takes more and more memory: a limit of the address
space ends its process, which counts as found.

    (ulimit -v 9000000; make sim-survey)    # goes on with what is missing; DRTMX_PLANTED_SEEDS=60
    make sim-survey BUGS='Bin|Array' KIND=bins    # rows of a kind

| bug | what is wrong | seeds | commit | day |
|---|---|---|---|---|
`

// packagesOf are the packages that simulated clusters consist of.
func packagesOf(t *testing.T) map[string]bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-test", "-tags", "simulated", "./server")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		found[strings.TrimPrefix(name, "drtmx/")] = true
	}
	return found
}

// in reports whether the bug is in some of the packages.
func (b *bug) in(packages map[string]bool) bool {
	return slices.ContainsFunc(b.edits, func(e edit) bool { return packages[path.Dir(e.file)] })
}
