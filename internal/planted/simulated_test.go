package planted

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// simulated are bugs that simulated clusters find, each within a number of
// seeds, and what they report.
var simulated = []struct {
	name  string
	seeds int
	want  string
	kind  string // of the clusters that are simulated
}{
	{"AcknowledgeBeforeSync", 50, "ledger: |not strictly serializable", "disk"},
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
	{"AnyCopyIsPromoted", 200, wrong, "hosts"},
	{"SetWithoutComparing", 50, wrong + "|does not settle", "hosts"},
	{"NothingIsDistrusted", 300, wrong, "hosts"},
	{"TimeoutProvesALoss", 500, wrong, "hosts"},
	{"OwnServerGoesFirst", 200, "gives its own server away", "hosts"},
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
// matches the environment variable DRTMX_PLANTED_SIM.
func TestSimulatorFindsBugs(t *testing.T) {
	pattern, ok := os.LookupEnv("DRTMX_PLANTED_SIM")
	if !ok {
		t.Skip("builds package server for each bug, which takes minutes: set DRTMX_PLANTED_SIM to a regular expression, or use make sim-planted")
	}
	chosen, ran := regexp.MustCompile(pattern), 0
	for _, s := range simulated {
		if !chosen.MatchString(s.name) {
			continue
		}
		ran++
		t.Run(s.name, func(t *testing.T) {
			for _, b := range bugs {
				if b.name == s.name {
					simulate(t, &b, s.seeds, regexp.MustCompile(s.want), s.kind)
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

// simulate runs seeds with a bug, until one of them fails.
func simulate(t *testing.T, b *bug, seeds int, want *regexp.Regexp, kind string) {
	t.Helper()
	t.Log(b.why)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "run", "./internal/sim/simulate", "-overlay", newBinaries(t, b).overlay,
		"-seeds", "1-"+strconv.Itoa(seeds), "-replay", "0", "-failures", "1", "-kind", kind)
	cmd.Dir = root
	start := time.Now()
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("%d seeds find nothing", seeds)
	}
	found, seed := want.Find(out), replays.FindSubmatch(out)
	if found == nil || seed == nil {
		t.Fatalf("the simulation failed, but not for the reason %q: %v\n%s", want, err, out)
	}
	t.Logf("seed %s, after %v: %s", seed[1], time.Since(start).Round(time.Second), found)
}

var replays = regexp.MustCompile(`make sim SEED=(\d+)`)
