package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"drtmx/internal/cli"
	"drtmx/internal/rng"
	"drtmx/tpcc"
	"drtmx/txn"
)

// What a run with --chaos does to a server.
const (
	chaosKill    = "kill"    // SIGKILL; started again later
	chaosPause   = "pause"   // SIGSTOP, and SIGCONT later
	chaosCut     = "cut"     // its network, or a part of it
	chaosMove    = "move"    // a data server of its goes to another host, and back to its own
	chaosRestart = "restart" // drained, ended, and started again
)

var chaosKinds = []string{chaosKill, chaosPause, chaosCut, chaosMove, chaosRestart}

// chaosDefault is --chaos without a value: what needs no privileges.
const chaosDefault = chaosKill + "," + chaosPause

// chaosDuration is how long such a run lasts without --duration.
const chaosDuration = time.Minute

// chaosUses are the flags of tpcc run that mean something with --chaos.
var chaosUses = []string{
	"chaos", "warehouses", "servers", "partitions", "replicas", "min-in-sync", "zones", "memory", "retain", "retain-bytes", "checkpoint-bytes",
	"items", "customers", "seed", "clients", "duration", "fabric", "data-dir", "durability", "json", "help",
	"device", "tls-ca", "tls-cert", "tls-key", "insecure",
}

// chaosFlags are those of a run with --chaos.
type chaosFlags struct {
	kinds      []string
	data       dataFlags
	size       sizeFlags
	load       loadFlags
	tls        tlsFlags
	clients    int
	duration   time.Duration
	fabric     string
	json       string
	namespaces bool // each host has a network of its own
}

// chaosOf are the flags of a run with --chaos, of those of tpcc run.
func (f *runFlags) chaosOf(c *cobra.Command) (*chaosFlags, error) {
	given := c.Flags().Changed
	o := &chaosFlags{
		kinds: f.chaos, data: f.data, size: f.size, load: f.load, tls: f.where.tls,
		duration: f.pace.duration, fabric: f.fabric, json: f.json, namespaces: slices.Contains(f.chaos, chaosCut),
	}
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for i, k := range o.kinds {
		if !slices.Contains(chaosKinds, k) || slices.Contains(o.kinds[:i], k) {
			fault("--chaos %q: want %s, each once", k, oneOf(chaosKinds))
		}
	}
	c.Flags().Visit(func(flag *pflag.Flag) {
		if !slices.Contains(chaosUses, flag.Name) {
			fault("--%s and --chaos: its clients run the mix of tpcc durability, each with a ledger; want one of them", flag.Name)
		}
	})
	if !given("duration") {
		o.duration = chaosDuration
	}
	if !given("fabric") && o.namespaces {
		o.fabric = fabricTCP
	}
	if !given("replicas") {
		o.size.replicas = 2
	}
	if !given("servers") {
		o.size.servers = min(max(o.load.warehouses, 1), 3)
	}
	o.tls.insecure = o.tls.insecure || o.namespaces // the network is this command's own
	o.clients = f.pace.clients[0]
	if !given("clients") {
		o.clients = 8
	}
	if o.data.dir != "" {
		errs = append(errs, o.data.check(given))
	} else if o.data.durability = durabilityDisk; given("durability") && f.data.durability != durabilityDisk {
		fault("--durability %s and --chaos: data in memory has no copies; want disk", f.data.durability)
	}
	errs = append(errs, o.size.check(), o.load.check(), checkChoice("fabric", o.fabric, fabrics))
	switch {
	case o.size.replicas < 2:
		fault("--replicas %d and --chaos: want at least 2, so that a copy takes the place of what is lost", o.size.replicas)
	case len(f.pace.clients) > 1 || o.clients < 1 || o.clients > 1<<10:
		fault("--clients %s and --chaos: want one number, 1 to %d", listed(f.pace.clients), 1<<10)
	case o.duration <= 0 || o.duration > durationMax:
		fault("--duration %v: want more than 0s and at most %v", o.duration, durationMax)
	case o.fabric == fabricInproc:
		fault("--fabric %s and --chaos: data servers of this process cannot be killed; want %s, %s or %s", o.fabric, fabricShm, fabricTCP, fabricVerbs)
	case o.namespaces && o.fabric != fabricTCP:
		fault("--fabric %s and --chaos %s: want %s, which has a network to cut", o.fabric, chaosCut, fabricTCP)
	case o.size.servers < 2 && slices.ContainsFunc(o.kinds, planned):
		fault("--servers %d and --chaos %s: want at least 2 hosts", o.size.servers, strings.Join(o.kinds, ","))
	case o.size.servers > o.load.warehouses:
		fault("--servers %d: want at most one for each of the %d warehouses (--warehouses)", o.size.servers, o.load.warehouses)
	}
	return o, errors.Join(errs...)
}

// chaosReport is the JSON object of a run with --chaos. Stalls are times without a
// commit at a data server, seconds.
type chaosReport struct {
	Kinds        []string         `json:"chaos"`
	Seed         uint64           `json:"seed"`
	Fabric       string           `json:"fabric"`
	Namespaces   bool             `json:"namespaces"` // each host has a network of its own
	Warehouses   int              `json:"warehouses"`
	Servers      int              `json:"servers"`
	Replicas     int              `json:"replicas"`
	Clients      int              `json:"clients"`
	LeaseS       float64          `json:"lease_s"`
	DurationS    float64          `json:"duration_s"`
	Events       []*chaosEvent    `json:"events"`
	Failovers    int              `json:"failovers"` // data servers that another host took over
	ByKind       map[string]int   `json:"failovers_by_kind"`
	Moves        int              `json:"moves"`   // data servers that a move or a restart took to another host
	Returns      int              `json:"returns"` // data servers that went back to their own host
	Stall        spreadReport     `json:"failover_stall_s"`
	MoveStall    spreadReport     `json:"move_stall_s"`
	ReturnStall  spreadReport     `json:"return_stall_s"`
	Acknowledged int              `json:"acknowledged"` // transactions that write
	Refused      int              `json:"refused"`
	Unknown      int              `json:"unknown"`        // without an answer
	Committed    int              `json:"committed"`      // of unknown: had committed
	Errors       map[string]int   `json:"errors"`         // of clients with deadlines of 0.5 to 5.5 s, by kind
	Patient      map[string]int   `json:"patient_errors"` // of clients with deadlines of patient_s
	PatientS     float64          `json:"patient_s"`
	Rest         latencyReport    `json:"rest"`        // of NEW-ORDERs while nothing was done to a host
	Beside       latencyReport    `json:"beside"`      // of those while something was
	Views        int64            `json:"views"`       // of witnesses that follow the data servers
	StillViews   int64            `json:"still_views"` // of witnesses that know only where the data servers were
	LateViews    int64            `json:"late_views"`  // of still_views: ended while their host was gone or replaced
	Stale        int64            `json:"stale"`       // Views that showed less than what was acknowledged before
	Consistency  tpcc.Consistency `json:"consistency"`
	CheckS       float64          `json:"check_s"`
	ledgerFaults
	Version     string    `json:"version"`
	Commit      string    `json:"commit"`
	Started     time.Time `json:"started"`
	Interrupted bool      `json:"interrupted,omitempty"`
	Error       string    `json:"error,omitempty"`
}

// spreadReport is of several times; all 0 if there are none.
type spreadReport struct {
	Count  int     `json:"count"`
	Least  float64 `json:"least"`
	Median float64 `json:"median"`
	Worst  float64 `json:"worst"`
}

func spreadReportOf(v []float64) (r spreadReport) {
	if len(v) == 0 {
		return r
	}
	v = slices.Sorted(slices.Values(v))
	return spreadReport{len(v), v[0], v[len(v)/2], v[len(v)-1]}
}

// chaosEvent is what was done to one host.
type chaosEvent struct {
	AtS      float64       `json:"at_s"` // since the clients began
	Kind     string        `json:"kind"`
	From     string        `json:"from,omitempty"` // of a cut: all, store or hosts
	Host     int           `json:"host"`
	To       *int          `json:"to,omitempty"` // of a move: the other host
	Servers  []int         `json:"servers"`      // that were there
	AwayS    float64       `json:"away_s"`       // until it was started, went on, or was connected again
	Moved    []int         `json:"moved"`        // of servers: were taken over, or moved, meanwhile
	Stalls   []float64     `json:"stalls_s"`
	Returned []returnEvent `json:"returned,omitempty"`
}

// returnEvent is the return of a data server to its own host.
type returnEvent struct {
	Server int     `json:"server"`
	StallS float64 `json:"stall_s"`
}

// chaos is tpcc run --chaos.
func (a *app) chaos(ctx context.Context, f *chaosFlags) (err error) {
	if f.namespaces {
		inside, err := a.enterNetwork(ctx, f.size.servers)
		if !inside || err != nil {
			return err
		}
	}
	out, err := cli.OpenJSON(f.json, a.stdout)
	if err != nil {
		return cli.Usage(err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	t := &chaosRun{
		ledgerTest: ledgerTest{app: a, outcomes: map[txn.ID]bool{}, rnd: rng.New(f.load.seed).Split("chaos"), people: a.stdout},
		f:          f, report: &chaosReport{
			Kinds: f.kinds, Seed: f.load.seed, Fabric: f.fabric, Namespaces: f.namespaces, Warehouses: f.load.warehouses, Servers: f.size.servers,
			Replicas: f.size.replicas, Clients: f.clients, LeaseS: hostLease.Seconds(), Version: cli.Version, Commit: cli.Revision(commit), Started: time.Now(),
			Events: []*chaosEvent{}, ByKind: map[string]int{}, Errors: map[string]int{}, Patient: map[string]int{}, PatientS: f.patience().Seconds(),
		},
	}
	if out.ToStdout {
		t.people = a.stderr
	}
	remove, err := t.makeDir(&f.data, "drtmx-chaos-")
	if err != nil {
		return err
	}
	err = t.run(ctx)
	err = errors.Join(err, t.leave())
	if t.log != nil {
		err = errors.Join(err, t.log.Close())
	}
	r := t.report
	switch stopped := interrupted(ctx); {
	case err == nil && (r.bad() || r.Stale > 0):
		err = fmt.Errorf("%w: %s", errLost, r.Faults[0])
	case stopped != nil && !r.bad():
		r.Interrupted, err = true, stopped
	}
	if err != nil {
		r.Error = err.Error()
	}
	switch {
	case remove == "":
	case r.bad():
		a.Say("the data is kept in %s", remove)
	default:
		err = errors.Join(err, os.RemoveAll(remove))
	}
	r.print(t.people)
	return errors.Join(err, out.Put(r))
}

// print prints the report for people.
func (r *chaosReport) print(w io.Writer) {
	fmt.Fprintf(w, "\nchaos        %s on %d data servers with %d replicas over %s, %d warehouses, %d clients, %.0f s, seed %d\n",
		strings.Join(r.Kinds, ", "), r.Servers, r.Replicas, r.Fabric, r.Warehouses, r.Clients, r.DurationS, r.Seed)
	var by []string
	for _, k := range slices.Sorted(maps.Keys(r.ByKind)) {
		by = append(by, fmt.Sprintf("%d by %s", r.ByKind[k], k))
	}
	if len(by) == 0 {
		by = []string{"none"}
	}
	fmt.Fprintf(w, "failovers    %d (%s) and %d moves in %d events; %d returns to the own host\n", r.Failovers, strings.Join(by, ", "), r.Moves, len(r.Events), r.Returns)
	rows := [][]string{{"time without a commit, s", "times", "least", "median", "worst"}}
	for _, s := range []struct {
		name string
		of   spreadReport
	}{{"failover", r.Stall}, {"move", r.MoveStall}, {"return", r.ReturnStall}} {
		if s.of.Count == 0 {
			continue
		}
		rows = append(rows, []string{s.name, count(uint64(s.of.Count)), fmt.Sprintf("%.2f", s.of.Least), fmt.Sprintf("%.2f", s.of.Median), fmt.Sprintf("%.2f", s.of.Worst)})
	}
	if len(rows) > 1 {
		cli.Table(w, rows)
	}
	rows = [][]string{{"NEW-ORDER, ms", "times", "p50", "p99", "worst"}}
	for _, l := range []struct {
		name string
		of   latencyReport
	}{{"at rest", r.Rest}, {"beside events", r.Beside}} {
		rows = append(rows, []string{l.name, count(uint64(l.of.Count)), fmt.Sprintf("%.2f", l.of.P50us/1e3), fmt.Sprintf("%.2f", l.of.P99us/1e3), fmt.Sprintf("%.0f", l.of.WorstUs/1e3)})
	}
	cli.Table(w, rows)
	fmt.Fprintf(w, "acknowledged %d transactions that write, %d refused, %d without an answer of which %d had committed\n", r.Acknowledged, r.Refused, r.Unknown, r.Committed)
	fmt.Fprintf(w, "errors       %s; of clients that wait for %.0f s: %s\n", errorsText(r.Errors), r.PatientS, errorsText(r.Patient))
	fmt.Fprintf(w, "views        %d, and %d of clients that hear of no change, %d of these at a host that was gone or replaced; stale %d\n", r.Views, r.StillViews, r.LateViews, r.Stale)
	if len(r.Consistency) > 0 {
		printVerdicts(w, r.Consistency)
	}
	fmt.Fprintf(w, "lost         %d, doubled %d, wrong %d, phantom %d\n", r.Lost, r.Doubled, r.Wrong, r.Phantom)
	for _, fault := range r.Faults {
		fmt.Fprintf(w, "             %s\n", fault)
	}
}

func errorsText(by map[string]int) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(by)) {
		all = append(all, fmt.Sprintf("%d %s", by[k], k))
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

// errorKind is the kind of an error that a client met.
func errorKind(err error) string {
	for _, k := range []struct {
		is   error
		name string
	}{
		{txn.ErrOutcomeUnknown, "outcome unknown"},
		{txn.ErrUnavailable, "unavailable"},
		{txn.ErrConflict, "conflict"},
		{context.DeadlineExceeded, "deadline"},
		{context.Canceled, "canceled"},
	} {
		if errors.Is(err, k.is) {
			return k.name
		}
	}
	return "other"
}
