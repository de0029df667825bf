package planted

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"drtmx/internal/testseed"
)

// simulated are bugs that simulated clusters find, each within a number of
// seeds, and what they report.
var simulated = []struct {
	name  string
	seeds int
	want  string
	kind  string // of the clusters that are simulated
}{
	{"AcknowledgeBeforeSync", 50, "ledger: |not strictly serializable|the log was durable up to", "disk"},
	{"AnswerBeforeDurable", 100, "ledger: |not strictly serializable|transaction number out of order", "disk"},
	{"CreateNotSynced", 100, "ledger: |not strictly serializable|server \\d: ", "disk"},
	{"RenameNotSynced", 500, "ledger: |not strictly serializable|server \\d: ", "disk"},
	{"DeleteIsNotRedone", 100, "ledger: |not strictly serializable", "disk"},
	{"NothingIsWaitedFor", 2000, "not strictly serializable", "disk"},
	{"ImageNotSynced", 50, "server \\d+(, which is to crash again)?: ", "disk"},
	{"CheckpointWithoutShares", 100, "not strictly serializable|contradicts what was read|cannot be locked|every key", "disk"},
	{"ImageDirectoryNotSynced", 100, "ledger: |not strictly serializable|server \\d: ", "disk"},
	{"CheckpointOfAFailedLog", 100, "ledger: |not strictly serializable", "disk"},
	{"CheckpointWithoutDoubts", 200, "ledger: |not strictly serializable|every key|in doubt", "disk"},
	{"CheckpointWithoutOutcomes", 2000, "ledger: |not strictly serializable", "disk"},
	{"ForgetOutcomes", 200, "ledger: |not strictly serializable|Duplicate", "disk"},
	{"KeepLocks", 200, "every key|not strictly serializable", "disk"},
	{"AnyCopyIsPromoted", 500, wrong, "hosts"},
	{"SetWithoutComparing", 500, wrong + "|does not settle", "hosts"},
	{"NothingIsDistrusted", 300, wrong, "hosts"},
	{"TimeoutProvesALoss", 1500, wrong, "hosts"},
	{"OwnServerGoesFirst", 200, "gives its own server away", "hosts"},
	{"DoomedAnswer", 100, wrong, "storm"},
	{"SlotBeforeRow", 100, wrong, "storm"},
	{"UnlockEarly", 3000, wrong, "storm"},
	{"SeenStaysHere", 10000, wrong, "storm"},
	{"NoSharedLocks", 60, wrong, "storm:splits"},
	{"SharedLocksLast", 10000, wrong, "storm:splits"},
	{"ScanWithoutNextLeaf", 3000, wrong, "storm:edges"},
	{"SurvivorForgets", 1500, wrong, "lost"},
	{"EntryStaysAsItWas", 50, "audit: table", "bank"},
	{"UnlockEarly", 60, "audit: |" + wrong, "bank"},
	{"SkipCommitValidation", 100, "queue: |" + wrong, "queue"},
	{"DeleteIsNotRedone", 100, "queue: |" + wrong, "queue"},
	{"ForgetDecisions", 100, wrong + "|writes every key", "storm:full tables forget"},
	{"LostVersionsLeaveTheFloor", 500, wrong, "disk"},
	{"LateAfterAllTicks", 500, "after that tick was closed", "disk"},
	{"TooOldIsCut", 600, "the feed has ended: txn: changes too old", "disk"},
	{"OneSidedWithoutProofs", 300, wrong, "writers"},
	{"LeafProofsUnchecked", 100, wrong, "writers"},
	{"LoopbackIsBypassed", 3000, wrong, "writers"},
	{"FirstBinEndsSharing", 3000, wrong, "storm:write skews"},
	{"MergeEndsSharing", 3000, wrong, "storm:write skews"},
	{"DividedBinEndsSharing", 3000, wrong, "storm:write skews"},
	{"IntervalUnchecked", 1500, wrong, "bins"},
	{"ShipmentsAreTakenAgain", 200, wrong + "|a twin does not have a key", "twins"},
	{"TwinIsLate", 200, wrong + "|a twin does not have a key", "twins"},
	{"NextStepBeforeTheRecord", 500, "stays unknown|every key|" + wrong, "disk"},
	{"IgnoreChecksum", 1500, wrong + "|row of key [0-9]+ says", "storm:words in any order"},
}

// wrong is what clients see of a data server that two hosts have, or that has lost
// something.
const wrong = "ledger: |not strictly serializable|contradicts what was read"

func isSimulated(name string) bool {
	for _, s := range simulated {
		if s.name == name {
			return true
		}
	}
	return false
}

// TestSimulatorFindsBugs simulates clusters with each of those bugs whose name
// matches the environment variable DRTMX_PLANTED_SIM, until a seed fails. More
// variables:
//
//	DRTMX_PLANTED_FAILURES=n    until n seeds have failed: how many it takes, as a rule
//	DRTMX_PLANTED_SURVEY=kind   any bug, in that kind of cluster ("all": drawn), in so
//	DRTMX_PLANTED_SEEDS=n       many seeds; nothing is expected
func TestSimulatorFindsBugs(t *testing.T) {
	pattern, ok := os.LookupEnv("DRTMX_PLANTED_SIM")
	if !ok {
		t.Skip("simulates clusters with each bug, which takes minutes: set DRTMX_PLANTED_SIM to a regular expression, or use make sim-planted")
	}
	chosen, ran := regexp.MustCompile(pattern), 0
	all := newBuilds(t)
	if kind := os.Getenv("DRTMX_PLANTED_SURVEY"); kind != "" {
		if kind == "all" {
			kind = ""
		}
		for i := range bugs {
			if b := &bugs[i]; chosen.MatchString(b.name) {
				t.Run(b.name, func(t *testing.T) {
					found := simulate(t, all, b, testseed.Number(t, "DRTMX_PLANTED_SEEDS", 1000), regexp.MustCompile("FAILED: [^;]*"), kind)
					t.Logf("%s, %s: %v", b.name, kind, found)
				})
			}
		}
		return
	}
	for _, s := range simulated {
		if !chosen.MatchString(s.name) {
			continue
		}
		ran++
		t.Run(s.name, func(t *testing.T) {
			for _, b := range bugs {
				if b.name == s.name {
					if found := simulate(t, all, &b, s.seeds, regexp.MustCompile(s.want), s.kind); len(found.seeds) == 0 {
						t.Fatalf("%d seeds find nothing", s.seeds)
					}
					return
				}
			}
			t.Fatal("there is no such bug")
		})
	}
	if ran == 0 {
		t.Fatalf("no bug that the simulator finds matches DRTMX_PLANTED_SIM=%q", pattern)
	}
}

// finds are the seeds that find a bug, of the first ones.
type finds struct {
	seeds []int
	took  time.Duration
}

// findsIn reads seeds.
func findsIn(text string) (f finds, err error) {
	for _, field := range strings.Fields(text) {
		seed, err := strconv.Atoi(field)
		if err != nil {
			return f, err
		}
		f.seeds = append(f.seeds, seed)
	}
	return f, nil
}

// String tells how many seeds it takes to find the bug, and which.
func (f finds) String() string {
	if len(f.seeds) == 0 {
		return fmt.Sprintf("not found, in %v", f.took)
	}
	return fmt.Sprintf("%s, in %v: %v", f.short(), f.took, f.seeds)
}

// short tells how many seeds it takes to find the bug: the median, and the most.
func (f finds) short() string {
	gaps, last := []int(nil), 0
	for _, seed := range f.seeds {
		gaps, last = append(gaps, seed-last), seed
	}
	slices.Sort(gaps)
	return fmt.Sprintf("median %d, most %d", gaps[len(gaps)/2], gaps[len(gaps)-1])
}

// simulate runs seeds with a bug, until some fail. It fails if one fails for a
// reason that is not expected.
func simulate(t *testing.T, all *builds, b *bug, seeds int, want *regexp.Regexp, kind string) finds {
	t.Helper()
	t.Log(b.why)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	wrong, _ := all.with(t, b)
	cmd := exec.CommandContext(ctx, "go", "run", "./internal/sim/simulate", "-overlay", wrong.overlay,
		"-seeds", "1-"+strconv.Itoa(seeds), "-replay", "0", "-failures", strconv.Itoa(testseed.Number(t, "DRTMX_PLANTED_FAILURES", 1)), "-kind", kind)
	cmd.Dir, cmd.Env = root, wrong.environ()
	start := time.Now()
	out, err := cmd.CombinedOutput()
	f := finds{took: time.Since(start).Round(time.Second)}
	if err == nil {
		return f
	}
	found, last := want.Find(out), failing.FindSubmatch(out)
	if found == nil || last == nil {
		t.Fatalf("the simulation failed, but not for the reason %q: %v\n%s", want, err, out)
	}
	seen, err := findsIn(string(last[1]))
	if err != nil {
		t.Fatal(err)
	}
	f.seeds = seen.seeds
	t.Logf("%s: %v", found, f)
	return f
}

// failing are the seeds in the last line of a simulation.
var failing = regexp.MustCompile(`(?m)^seeds that failed: (.*)$`)
