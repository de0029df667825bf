package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/internal/rng"
	"drtmx/txn"
	"drtmx/txn/stats"
)

// durabilityFlags are the flags of tpcc durability.
type durabilityFlags struct {
	data     dataFlags
	size     sizeFlags
	load     loadFlags
	rounds   int
	victims  int
	away     time.Duration
	pause    bool
	duration time.Duration
	clients  int
	fabric   string
	json     string
}

// Bounds of tpcc durability.
const (
	roundsMax = 1_000_000
)

func (a *app) durabilityCommand() *cobra.Command {
	f := &durabilityFlags{}
	c := &cobra.Command{
		Use:   "durability",
		Short: "Kill all data servers again and again, and look for every acknowledged transaction",
		Long: `Starts data servers on an empty data directory, loads them, and repeats rounds:
clients run the whole mix and keep a ledger of what they were told; at a random
moment all data servers are killed with SIGKILL; they are started again on the
directory, and in some rounds killed while they recover; then the consistency
conditions are checked, and the ledgers of all rounds so far are compared with
the database. Every acknowledged transaction must be there once, as it was
acknowledged; every other one as a whole or not at all.

With --victims N only N data servers, drawn anew in each round, are killed and
started again, while the others and the clients go on. The clients' transactions
have deadlines. Every client must commit again when all data servers serve.

Ends with the first round in which something is lost, doubled or wrong, keeps
the directory and exits with status 1. Without --data-dir it takes a directory of
its own for temporary files, and removes it if nothing is wrong.

With --replicas each data server is a host with copies of others, and --victims
needs no data server to come back: while a victim is away for longer than its
lease, another host takes its data server over, and the clients go on. With
--pause victims are stopped with SIGSTOP instead, and go on later with the memory
that they had. A round begins when every data server has a copy in sync.

With --durability memory everything must be lost, which shows that the test sees
it. A power failure is another matter: SIGKILL leaves what the operating system
has buffered.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c.Flags().Changed); err != nil {
				return cli.Usage(asGiven(c, err))
			}
			return a.durability(c.Context(), f)
		},
	}
	fl := c.Flags()
	f.data.add(c)
	fl.Lookup("durability").DefValue, f.data.durability = durabilityDisk, durabilityDisk
	f.size.add(c)
	f.load.addSize(c)
	fl.Uint64Var(&f.load.seed, "seed", 0, "seed of all data, inputs and moments; 0 means a random one, which is printed")
	fl.IntVar(&f.rounds, "rounds", 10, "rounds")
	fl.IntVar(&f.victims, "victims", 0, "data servers killed in a round while the others and the clients go on; 0 means all, and the clients too begin anew")
	fl.DurationVar(&f.away, "away", 0, fmt.Sprintf("longest time for which a victim is away in a round, a random one up to it; 0 means %v, or %v with --replicas", awayMax, awayHosts))
	fl.BoolVar(&f.pause, "pause", false, "with --replicas: victims are stopped, and go on, instead of killed and started again")
	fl.DurationVar(&f.duration, "duration", 2*time.Second, "longest time of load in a round; the kill comes at a random moment of it")
	fl.IntVarP(&f.clients, "clients", "T", 8, "clients")
	fl.StringVar(&f.fabric, "fabric", fabricShm, "fabric: shm, tcp or verbs")
	fl.StringVar(&f.json, "json", "", "write the report as JSON to this file; - for standard output")
	return c
}

func (f *durabilityFlags) check(given func(string) bool) error {
	if !given("servers") && f.load.warehouses < f.size.servers {
		f.size.servers = f.load.warehouses
	}
	if f.load.seed == 0 {
		f.load.seed = uint64(time.Now().UnixNano())
	}
	var dir error
	if f.data.dir != "" { // else a temporary one
		dir = f.data.check(given)
	} else {
		dir = checkChoice("durability", f.data.durability, durabilities)
	}
	errs := []error{dir, f.size.check(), f.load.check()}
	switch {
	case f.rounds < 1 || f.rounds > roundsMax:
		errs = append(errs, fmt.Errorf("--rounds %d: want 1 to %d", f.rounds, roundsMax))
	case f.duration <= 0 || f.duration > durationMax:
		errs = append(errs, fmt.Errorf("--duration %v: want more than 0s and at most %v", f.duration, durationMax))
	case f.clients < 1 || f.clients > 1<<10:
		errs = append(errs, fmt.Errorf("--clients %d: want 1 to %d", f.clients, 1<<10))
	case f.victims < 0 || f.victims >= f.size.servers && f.victims > 0:
		errs = append(errs, fmt.Errorf("--victims %d: want fewer than the %d data servers (--servers), or 0 for all of them", f.victims, f.size.servers))
	case f.victims > 0 && f.data.durability == durabilityMemory:
		errs = append(errs, fmt.Errorf("--victims %d and --durability memory: clients cannot go on with a data server that has lost its memory; want disk", f.victims))
	case f.away < 0 || f.away > durationMax:
		errs = append(errs, fmt.Errorf("--away %v: want 0s to %v", f.away, durationMax))
	case f.away > 0 && f.victims == 0:
		errs = append(errs, fmt.Errorf("--away %v: want --victims with it", f.away))
	case f.pause && (f.size.replicas < 2 || f.victims == 0):
		errs = append(errs, errors.New("--pause: want --replicas and --victims with it"))
	case f.size.replicas > 1 && f.data.durability == durabilityMemory:
		errs = append(errs, fmt.Errorf("--replicas %d and --durability memory: data in memory has no copies; want disk", f.size.replicas))
	case f.fabric == fabricInproc:
		errs = append(errs, fmt.Errorf("--fabric %s: data servers of this process cannot be killed; want %s, %s or %s", f.fabric, fabricShm, fabricTCP, fabricVerbs))
	case f.size.servers > f.load.warehouses:
		errs = append(errs, fmt.Errorf("--servers %d: want at most one for each of the %d warehouses (--warehouses)", f.size.servers, f.load.warehouses))
	}
	return errors.Join(append(errs, checkChoice("fabric", f.fabric, fabrics))...)
}

// durabilityReport is the JSON object of tpcc durability.
type durabilityReport struct {
	Durability  string         `json:"durability"`
	Seed        uint64         `json:"seed"`
	Warehouses  int            `json:"warehouses"`
	Servers     int            `json:"servers"`
	Clients     int            `json:"clients"`
	Replicas    int            `json:"replicas"`
	Victims     int            `json:"victims,omitempty"` // killed in a round; 0: all
	Pause       bool           `json:"pause,omitempty"`   // they are stopped instead
	Moved       int            `json:"moved,omitempty"`   // in all rounds
	DurationS   float64        `json:"duration_s"`        // longest load of a round
	Rounds      []*roundReport `json:"rounds"`
	Acknowledge int            `json:"acknowledged"` // in all rounds: transactions that write
	Unknown     int            `json:"unknown"`
	Lost        int            `json:"lost"`
	Doubled     int            `json:"doubled"`
	Wrong       int            `json:"wrong"`
	Phantom     int            `json:"phantom"`
	Version     string         `json:"version"`
	Commit      string         `json:"commit"`
	Started     time.Time      `json:"started"`
	Interrupted bool           `json:"interrupted,omitempty"`
	Error       string         `json:"error,omitempty"`
}

// roundReport is one round. The kinds of faults are those of tpcc.LedgerReport.
type roundReport struct {
	Round        int             `json:"round"`
	LoadS        float64         `json:"load_s"`              // from the first transaction to the kill
	Victims      []int           `json:"victims,omitempty"`   // data servers that were killed, if not all
	AwayS        float64         `json:"away_s,omitempty"`    // from the first kill until all served again
	Meanwhile    int             `json:"meanwhile,omitempty"` // of acknowledged: in that time
	StallS       float64         `json:"stall_s,omitempty"`   // the longest time in which a client committed nothing
	Moved        int             `json:"moved,omitempty"`     // data servers that other processes have taken over
	KilledStarts int             `json:"killed_starts"`       // starts that were killed, too
	Acknowledged int             `json:"acknowledged"`        // transactions that write, in this round
	Refused      int             `json:"refused"`
	Unknown      int             `json:"unknown"`   // without an answer
	Committed    int             `json:"committed"` // of unknown: had committed
	StartS       float64         `json:"start_s"`   // until the data servers served again
	CheckS       float64         `json:"check_s"`
	Recovery     *stats.Recovery `json:"recovery,omitempty"` // of the data server that took longest
	ledgerFaults
}

// errLost ends tpcc durability, and a run with --chaos, with status 1.
var errLost = errors.New("durability: the database is not what its clients were told")

// durability is tpcc durability.
func (a *app) durability(ctx context.Context, f *durabilityFlags) (err error) {
	out, err := cli.OpenJSON(f.json, a.stdout)
	if err != nil {
		return cli.Usage(err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	t := &durabilityTest{ledgerTest: ledgerTest{app: a, outcomes: map[txn.ID]bool{}, rnd: rng.New(f.load.seed).Split("durability")}, f: f, report: &durabilityReport{
		Durability: f.data.durability, Seed: f.load.seed, Warehouses: f.load.warehouses, Servers: f.size.servers, Clients: f.clients, Victims: f.victims, Replicas: f.size.replicas, Pause: f.pause,
		DurationS: f.duration.Seconds(), Version: cli.Version, Commit: cli.Revision(commit), Started: time.Now(), Rounds: []*roundReport{},
	}}
	if !out.ToStdout {
		t.people = a.stdout
	} else {
		t.people = a.stderr
	}
	remove, err := t.makeDir(&f.data, "drtmx-durability-")
	if err != nil {
		return err
	}
	err = t.run(ctx)
	err = errors.Join(err, t.leave())
	if stopped := interrupted(ctx); stopped != nil && !errors.Is(err, errLost) {
		t.report.Interrupted, err = true, stopped
	}
	if err != nil {
		t.report.Error = err.Error()
	}
	switch {
	case remove == "":
	case errors.Is(err, errLost):
		a.Say("the data is kept in %s", remove)
	default:
		err = errors.Join(err, os.RemoveAll(remove))
	}
	t.summary()
	return errors.Join(err, out.Put(t.report))
}

// summary prints the result for people.
func (t *durabilityTest) summary() {
	r := t.report
	fmt.Fprintf(t.people, "durability   %s, %d of %d rounds, seed %d\n", r.Durability, len(r.Rounds), t.f.rounds, r.Seed)
	fmt.Fprintf(t.people, "acknowledged %d transactions that write, %d without an answer\n", r.Acknowledge, r.Unknown)
	if stalls := r.stalls(); len(stalls) > 0 {
		fmt.Fprintf(t.people, "stalls       %d rounds moved %d data servers to other processes; longest time without a commit of a client there: median %.2f s, worst %.2f s\n",
			len(stalls), r.Moved, stalls[len(stalls)/2], stalls[len(stalls)-1])
	}
	fmt.Fprintf(t.people, "lost         %d, doubled %d, wrong %d, phantom %d\n", r.Lost, r.Doubled, r.Wrong, r.Phantom)
}

// stalls are those of the rounds in which a data server was taken over, in order.
func (r *durabilityReport) stalls() (all []float64) {
	for _, round := range r.Rounds {
		if round.Moved > 0 {
			all = append(all, round.StallS)
		}
	}
	slices.Sort(all)
	return all
}

// line prints a round for people.
func (t *durabilityTest) line(r *roundReport) {
	verdict := "ok"
	if r.bad() {
		verdict = "FAILED"
	}
	phases := ""
	if r.Recovery != nil {
		phases = " (" + phasesText(r.Recovery) + ")"
	}
	again := ""
	if r.KilledStarts > 0 {
		again = fmt.Sprintf(", killed %d times while starting", r.KilledStarts)
	}
	who := ""
	if len(r.Victims) > 0 {
		who = fmt.Sprintf(" data server %s, away for %.2f s with %d acknowledged", joinInts(r.Victims), r.AwayS, r.Meanwhile)
		if r.Moved > 0 {
			who += fmt.Sprintf(", %d taken over, longest stall %.2f s", r.Moved, r.StallS)
		}
	}
	fmt.Fprintf(t.people, "round %-4d   killed after %.2f s%s%s: %d acknowledged, %d refused, %d unknown of which %d committed; started in %.2f s%s, checked in %.1f s: %s\n",
		r.Round, r.LoadS, who, again, r.Acknowledged, r.Refused, r.Unknown, r.Committed, r.StartS, phases, r.CheckS, verdict)
	for _, fault := range r.Faults {
		fmt.Fprintf(t.people, "             %s\n", fault)
	}
}

// phasesText lists the phases of a recovery: "checkpoint 0.2 s, log 0.1 s".
func phasesText(r *stats.Recovery) string {
	text := ""
	for i, p := range r.Phases {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%s %.2f s", p.Name, p.Seconds)
		if p.Done > 0 {
			text += fmt.Sprintf(" for %d", p.Done)
		}
	}
	return text
}

// end adds a round to the report, and says whether it was the last one.
func (t *durabilityTest) end(r *roundReport) error {
	all := t.report
	all.Rounds = append(all.Rounds, r)
	all.Acknowledge += r.Acknowledged
	all.Unknown += r.Unknown
	all.Moved += r.Moved
	all.Lost, all.Doubled, all.Wrong, all.Phantom = r.Lost, r.Doubled, r.Wrong, r.Phantom
	t.line(r)
	if r.bad() {
		return fmt.Errorf("%w: round %d: %s", errLost, r.Round, r.Faults[0])
	}
	return nil
}

// durabilityTest is a running test.
type durabilityTest struct {
	ledgerTest
	f        *durabilityFlags
	report   *durabilityReport
	took     time.Duration // of the last start
	resolved int           // of outcomes: had committed before this round
}
