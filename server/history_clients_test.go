package server_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/clock"
	"drtmx/internal/history"
	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/tables"
	"drtmx/txn"
)

// load says what a run's clients do. Each kind of operation and of transaction
// can be left out, which is how runs come to differ.
type load struct {
	Seed           uint64
	Room           int           // values in a row
	Strings        bool          // string keys, and rows as long as their lists
	Engine         tables.Engine // of the ordered table
	Bare           bool          // it has no secondary index, and transactions of it alone are many
	Twin           tables.Twin   // of the hashed table
	Rebuild        bool          // the twin is taken away and built again meanwhile
	Keys           int
	ScanKeys       int // the most that a scan spans; 0: eight
	OpsPerTxn      int
	Reads, Scans   float64
	Deletes        float64
	Views          float64 // shares of transactions; the rest are Updates
	Calls          float64
	Looks          float64 // read-only procedures
	Snapshots      float64
	Stale          time.Duration // the most that every second snapshot may be behind; 0: none may
	Linger         time.Duration // the most that every fourth snapshot waits between its steps
	Dawdle         time.Duration // the most that every second View and Update waits between its steps
	ClocksStop     bool          // servers are paused, and their clocks with them: then staleness has no bound in real time
	RollBacks      float64
	Skews          float64 // share of transactions that write that form write skews in the ordered table, each with another
	OneTable       bool
	Hows           uint64 // variations of steps that may occur
	LossyCalls     bool   // calls may end with an unknown outcome: then what they deleted is not known either
	Clients        int
	TxnsPerClient  int           // 0: until Duration has passed
	Duration       time.Duration // 0: until TxnsPerClient
	FirstProcess   uint32        // number of the first client in the history
	ServersToFail  bool          // ErrUnavailable is to be expected
	OutcomeMayLost bool          // so is ErrOutcomeUnknown
	MemoryMayGo    bool          // a server may lose its memory: of what ErrUnavailable ends nothing is known
	MayBeTooLarge  bool          // so is ErrTooLarge
	MayBeFull      bool          // so is ErrNoSpace
	Rotate         int           // appends after which a list is left alone; 0: as many as a row holds
	LargeOps       int           // operations in a transaction of every fourth client; 0: as of the others
	Patience       time.Duration // after which every other client gives a transaction up; 0: none does
	AskUnknown     bool          // an outcome that is unknown is asked for, and must be known in the end
	AskFor         time.Duration // by then; 0: testseed.Patience
	Rest           time.Duration // the most that a client waits between two transactions
	OddRead        bool          // every other client has Views only
}

// swarm draws a load for one run of many.
func swarm(s *rng.Stream, seed uint64) load {
	share := func(p, most float64) float64 {
		x := s.Float64() * most
		if !s.Bool(p) {
			return 0
		}
		return x
	}
	l := load{
		Seed: seed, Room: 4 + 20*s.Intn(2), Keys: 3 + s.Intn(20), OpsPerTxn: 1 + s.Intn(6), Clients: 3 + s.Intn(4),
		Reads: share(0.8, 0.6), Scans: share(0.7, 0.3), Deletes: share(0.5, 0.2),
		Views: share(0.8, 0.5), Calls: share(0.7, 0.4), Looks: share(0.3, 0.1), RollBacks: share(0.3, 0.1),
		Snapshots: share(0.8, 0.4), Stale: between(s, 0, 200), Linger: between(s, 0, 30),
		OneTable: s.Bool(0.2), Strings: s.Bool(0.5), Hows: s.Uint64() & (1<<howBits - 1),
	}
	if l.Engine = tables.XStore; !l.Strings {
		l.Engine = []tables.Engine{tables.XStore, tables.Rolex, tables.FineStore}[s.Split("engine").Intn(3)]
	}
	l.Bare = l.Engine == tables.Rolex && s.Split("bare").Bool(0.6)
	l.Twin = []tables.Twin{"", "", tables.TwinLocal, tables.TwinSync, tables.TwinNext, tables.TwinNext}[s.Split("twin").Intn(6)]
	l.Rebuild = l.Twin != "" && s.Split("rebuild").Bool(0.5)
	if l.Views+l.Calls+l.Looks+l.Snapshots > 0.9 {
		l.Views, l.Calls, l.Looks, l.Snapshots = l.Views/2, l.Calls/2, l.Looks/2, l.Snapshots/2
	}
	return l
}

// writers makes it a load most of which clients commit without the data servers.
func (l *load) writers(s *rng.Stream) {
	l.Strings, l.Engine, l.Bare = false, tables.Rolex, true
	l.Keys += s.Intn(60) // fewer transactions meet, which send each other to the data servers
	l.Views, l.Calls, l.Looks, l.Snapshots = l.Views/3, l.Calls/4, l.Looks/2, l.Snapshots/4
}

// bins makes it a load of a table of the engine FineStore, whose keys come and go.
func (l *load) bins(s *rng.Stream) {
	l.Strings, l.Engine, l.Bare = false, tables.FineStore, false
	l.Keys += s.Intn(200)
	l.Deletes = max(l.Deletes, 0.2*s.Float64())
}

// onDisks leaves out what is in memory only.
func (l *load) onDisks() {
	if l.Engine == tables.Rolex {
		l.Engine, l.Bare = tables.XStore, false
	}
	if l.Twin == tables.TwinNext {
		l.Twin = tables.TwinSync
	}
}

// client runs random transactions and writes down what they found.
type client struct {
	l     *load
	s     *listSchema
	db    *txn.DB
	gen   [2]history.Generator
	rnd   *rng.Stream
	rec   *history.Recorder
	res   results
	steps []step
	plan  []history.PlanOp
	args  []byte
	begun uint64

	// announce, if set, is told of a transaction before it begins, ended when it is recorded.
	announce func(n uint64, invoke int64) error
	noTwin   bool // the hashed table has lost its twin
	ended    func() error

	died func() bool // whether its process is dead; may be nil
	over bool        // it is

	counts   map[string]int
	refusals int           // since the last commit
	patience time.Duration // 0: no bound
	odd      error         // the first answer that no consistent state gives
	lost     txn.ID        // of a transaction whose outcome is to be asked for
}

func newClient(l *load, s *listSchema, db *txn.DB, n int) *client {
	p := l.FirstProcess + uint32(n)
	c := &client{
		l: l, s: s, db: db, rnd: rng.New(l.Seed).SplitN(uint64(p)), rec: history.NewRecorder(p), counts: map[string]int{},
	}
	rotate := max(l.Room-3, 2)
	if l.Rotate > 0 {
		rotate = l.Rotate
	}
	ops := l.OpsPerTxn
	if l.LargeOps > 0 && n%4 == 0 {
		ops = l.LargeOps
	}
	if n%2 == 1 && n < l.Clients {
		c.patience = l.Patience
	}
	if l.OddRead && n%2 == 1 && n < l.Clients {
		own := *l
		own.Views, own.Calls, own.Looks, own.Snapshots = 1, 0, 0, 0
		own.TxnsPerClient, own.Rest = 3*l.TxnsPerClient, l.Rest/3
		c.l = &own
	}
	for i := range c.gen {
		c.gen[i] = history.Generator{
			Seed: l.Seed + uint64(i), Process: p, Keys: l.Keys, OpsPerTxn: ops, RotateAfter: rotate,
			ReadFraction: l.Reads, ScanFraction: l.Scans, DeleteFraction: l.Deletes, ScanKeys: l.ScanKeys,
		}
	}
	return c
}

// now is a clock that all processes of the host share.
func now() int64 {
	if clock.Simulated() {
		return time.Now().UnixNano() // by which no process of the cluster goes
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// work runs transactions until the load is done or ctx ends. An error is one
// that the API does not allow.
func (c *client) work(ctx context.Context) error {
	end := time.Now().Add(c.l.Duration)
	for n := 0; c.l.TxnsPerClient == 0 || n < c.l.TxnsPerClient; n++ {
		if ctx.Err() != nil || c.l.TxnsPerClient == 0 && time.Now().After(end) {
			break
		}
		if err := c.one(ctx); err != nil {
			return errors.Join(c.odd, err)
		}
		if c.over {
			break
		}
		if c.refusals > 0 {
			time.Sleep(backoffLeast << min(c.refusals-1, backoffDoublings))
		}
		if c.l.Rest > 0 {
			time.Sleep(time.Duration(c.rnd.Uint64n(uint64(c.l.Rest))))
		}
	}
	return c.odd
}

// A client whose transactions are refused waits between them, so that a history
// is not filled with refusals.
const (
	backoffLeast     = time.Millisecond
	backoffDoublings = 5
)

// next plans the steps of a transaction.
func (c *client) next(readOnly bool) {
	c.steps = c.steps[:0]
	if !readOnly && c.l.Skews > 0 && c.rnd.Bool(c.l.Skews) {
		c.plan = c.gen[inOrdered].NextSkew(c.plan[:0])
		for _, op := range c.plan {
			c.steps = append(c.steps, step{PlanOp: op, table: inOrdered})
		}
		rng.Shuffle(c.rnd, c.steps)
		return
	}
	first, alone := c.rnd.Intn(2), c.l.Bare && c.rnd.Bool(0.7)
	if alone {
		first = inOrdered
	}
	for i := range c.gen {
		table := (first + i) % 2
		if i > 0 && (c.l.OneTable || alone || c.rnd.Bool(0.5)) {
			break
		}
		if c.plan = c.plan[:0]; readOnly {
			c.plan = c.gen[table].NextSnapshot(c.plan)
		} else {
			c.plan = c.gen[table].Next(c.plan)
		}
		for _, op := range c.plan {
			c.steps = append(c.steps, step{PlanOp: op, table: table, how: c.rnd.Uint64() & c.l.Hows &^ howRollBack})
		}
	}
	rng.Shuffle(c.rnd, c.steps)
	if !readOnly && c.rnd.Bool(c.l.RollBacks) {
		c.steps[0].how |= howRollBack
	}
}

// one runs one transaction.
func (c *client) one(ctx context.Context) error {
	kind := c.rnd.Float64()
	view := kind < c.l.Views
	look := !view && kind < c.l.Views+c.l.Looks
	call := !view && !look && kind < c.l.Views+c.l.Looks+c.l.Calls
	snap := kind > 1-c.l.Snapshots
	c.next(view || look || snap)
	if snap && (c.l.Engine == tables.Rolex || c.l.Engine == tables.FineStore) { // no Snapshot reads that table
		c.steps = slices.DeleteFunc(c.steps, func(s step) bool { return s.table == inOrdered })
		snap = len(c.steps) > 0
	}
	if snap && c.l.Twin == tables.TwinNext { // no Snapshot reads ranges of that table by its twin
		for i := range c.steps {
			c.steps[i].how |= howSecondary
		}
	}
	if call && c.l.LossyCalls {
		for i := range c.steps {
			if c.steps[i].Kind == history.OpDelete {
				c.steps[i].Kind = history.OpRead
			}
		}
	}
	body := func(t *txn.Txn) error { return c.s.run(t, c.steps, &c.res) }
	if c.l.Dawdle > 0 && !snap && c.rnd.Bool(0.5) {
		c.res.linger = time.Duration(c.rnd.Uint64n(uint64(c.l.Dawdle) + 1))
		defer func() { c.res.linger = 0 }()
	}
	c.res.reset()
	invoke := now()
	c.rec.Begin(invoke)
	c.begun++
	if c.announce != nil {
		if err := c.announce(c.begun, invoke); err != nil {
			return err
		}
	}
	if c.patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.patience)
		defer cancel()
	}
	var err error
	switch {
	case snap:
		err = c.snapshot(ctx)
	case view:
		err = c.db.View(ctx, body)
	case look:
		err = c.call(ctx, "look")
	case call:
		err = c.call(ctx, "run")
	default:
		err = c.db.Update(ctx, body)
	}
	outcome, err := c.outcome(err)
	if c.lost != (txn.ID{}) && !call {
		outcome, err = c.askFor(c.lost)
	}
	if call && outcome == history.Unknown {
		c.planned()
	}
	if outcome != history.Aborted {
		c.res.record(c.rec)
	} else {
		c.planned()
		c.res.record(c.rec) // what must not be seen
	}
	c.rec.End(outcome, now())
	c.res.observe(&c.gen)
	if c.ended != nil {
		err = errors.Join(err, c.ended())
	}
	return err
}

// stalenessSlack is how much later than a commit its tick may be known to the
// client of a stale snapshot: timers of servers close ticks, and have to run.
const stalenessSlack = 2 * time.Second

// snapshot runs a snapshot, strict or stale.
func (c *client) snapshot(ctx context.Context) error {
	linger := time.Duration(0)
	if c.rnd.Bool(0.25) {
		linger = time.Duration(c.rnd.Uint64n(uint64(c.l.Linger) + 1))
	}
	var opts []txn.SnapshotOption
	if stale := c.l.Stale; stale > 0 && c.rnd.Bool(0.5) {
		opts = append(opts, txn.Staleness(stale))
		if stale += stalenessSlack; c.l.ClocksStop {
			stale = time.Hour
		}
		c.counts["stale snapshots"]++
		c.rec.Snapshot(int64(stale))
	} else {
		c.counts["snapshots"]++
		c.rec.Snapshot(0)
	}
	return c.db.Snapshot(ctx, func(t *txn.Txn) error {
		c.res.linger = linger
		defer func() { c.res.linger = 0 }()
		return c.s.run(t, c.steps, &c.res)
	}, opts...)
}

func (c *client) call(ctx context.Context, proc string) error {
	c.args = encodeSteps(c.args[:0], c.steps)
	home := c.s.home(c.db, c.steps[0].table, uint64(c.steps[0].Key))
	b, err := c.db.Call(ctx, home, proc, c.args)
	if err == nil {
		c.res.decode(b)
	}
	return err
}

// planned puts the appends that a transaction was to make in the place of
// results, which did not arrive or do not count.
func (c *client) planned() {
	full := append([]result(nil), c.res.full...)
	c.res.reset()
	c.res.full = full
	for _, st := range c.steps {
		if st.Kind == history.OpAppend {
			c.res.add(history.OpAppend, st.table, st.Key).value = st.Value
		}
	}
}

// outcome is what an error of the API promises.
func (c *client) outcome(err error) (history.Outcome, error) {
	count := func(what string) { c.counts[what]++ }
	c.lost = txn.ID{}
	var proc *txn.ProcedureError
	switch {
	case err != nil && c.died != nil && c.died():
		count("died")
		c.over = true
		return history.Unknown, nil
	case err == nil:
		count("committed")
		c.refusals = 0
		return history.Committed, nil
	case errors.Is(err, txn.ErrOutcomeUnknown):
		count("unknown")
		c.refusals++
		var u *txn.UnknownOutcome
		if !errors.As(err, &u) || !c.l.OutcomeMayLost {
			return history.Unknown, fmt.Errorf("unknown outcome: %w", err)
		}
		if c.l.AskUnknown {
			c.lost = u.ID
		}
		return history.Unknown, nil
	case errors.Is(err, txn.ErrUnavailable):
		count("unavailable")
		c.refusals++
		if !c.l.ServersToFail {
			return history.Aborted, err
		}
		if c.l.MemoryMayGo {
			return history.Unknown, nil
		}
		return history.Aborted, nil
	case errors.Is(err, txn.ErrConflict):
		count("conflict")
	case c.patience > 0 && errors.Is(err, context.DeadlineExceeded):
		count("given up")
	case errors.Is(err, txn.ErrSnapshotTooOld):
		count("too old")
	case c.l.MayBeFull && errors.Is(err, txn.ErrNoSpace):
		count("no space")
		c.refusals++
	case c.l.MayBeTooLarge && errors.Is(err, txn.ErrTooLarge):
		count("too large")
	case errors.Is(err, errFull), errors.As(err, &proc) && proc.Text == errFull.Error():
		count("full")
	case errors.Is(err, errRollBack), errors.As(err, &proc) && proc.Text == errRollBack.Error():
		count("rolled back")
	case errors.Is(err, txn.ErrExists), errors.Is(err, txn.ErrNotFound):
		// The bodies look before they insert and delete. The history goes on:
		// it may tell more.
		count("odd")
		if c.odd == nil {
			c.odd = fmt.Errorf("contradicts what was read: %w", err)
		}
	default:
		return history.Aborted, err
	}
	return history.Aborted, nil
}

// askFor asks for the outcome of a transaction until it is known.
func (c *client) askFor(id txn.ID) (history.Outcome, error) {
	for end := time.Now().Add(cmp.Or(c.l.AskFor, testseed.Patience())); ; time.Sleep(time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := c.db.Outcome(ctx, id)
		cancel()
		switch {
		case err == nil:
			c.counts["unknown, committed"]++
			return history.Committed, nil
		case errors.Is(err, txn.ErrConflict):
			c.counts["unknown, not committed"]++
			return history.Aborted, nil
		case errors.Is(err, txn.ErrOutcomeUnknown): // the request may still be under way
			c.counts["unknown, not known"]++
			return history.Unknown, nil
		case c.died != nil && c.died():
			c.over = true
			return history.Unknown, nil
		case time.Now().After(end):
			return history.Unknown, fmt.Errorf("the outcome of %v stays unknown: %w", id, err)
		}
	}
}

// look records a View of the steps that were planned.
func (c *client) look(ctx context.Context) error {
	c.res.reset()
	c.rec.Begin(now())
	err := c.db.View(ctx, func(t *txn.Txn) error { return c.s.run(t, c.steps, &c.res) })
	outcome := history.Committed
	if err != nil {
		outcome = history.Aborted
		c.res.reset()
	}
	c.res.record(c.rec)
	c.rec.End(outcome, now())
	return err
}
