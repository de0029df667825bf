package server_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/history"
	"drtmx/internal/rng"
	"drtmx/txn"
)

// load says what a run's clients do. Each kind of operation and of transaction
// can be left out, which is how runs come to differ.
type load struct {
	Seed           uint64
	Room           int  // values in a row
	Strings        bool // string keys, and rows as long as their lists
	Keys           int
	OpsPerTxn      int
	Reads, Scans   float64
	Deletes        float64
	Views          float64 // shares of transactions; the rest are Updates
	Calls          float64
	Looks          float64 // read-only procedures
	RollBacks      float64
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
	Rotate         int           // appends after which a list is left alone; 0: as many as a row holds
	LargeOps       int           // operations in a transaction of every fourth client; 0: as of the others
	Patience       time.Duration // after which every other client gives a transaction up; 0: none does
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
		OneTable: s.Bool(0.2), Strings: s.Bool(0.5), Hows: s.Uint64() & (1<<howBits - 1),
	}
	if l.Views+l.Calls+l.Looks > 0.9 {
		l.Views, l.Calls, l.Looks = l.Views/2, l.Calls/2, l.Looks/2
	}
	return l
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
	ended    func() error

	counts   map[string]int
	refusals int           // since the last commit
	patience time.Duration // 0: no bound
	odd      error         // the first answer that no consistent state gives
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
	for i := range c.gen {
		c.gen[i] = history.Generator{
			Seed: l.Seed + uint64(i), Process: p, Keys: l.Keys, OpsPerTxn: ops, RotateAfter: rotate,
			ReadFraction: l.Reads, ScanFraction: l.Scans, DeleteFraction: l.Deletes,
		}
	}
	return c
}

// now is a clock that all processes of the host share.
func now() int64 {
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
		if c.refusals > 0 {
			time.Sleep(backoffLeast << min(c.refusals-1, backoffDoublings))
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
	first := c.rnd.Intn(2)
	for i := range c.gen {
		table := (first + i) % 2
		if i > 0 && (c.l.OneTable || c.rnd.Bool(0.5)) {
			break
		}
		c.plan = c.gen[table].Next(c.plan[:0])
		for _, op := range c.plan {
			if readOnly && op.Kind != history.OpScan {
				op.Kind = history.OpRead
			}
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
	c.next(view || look)
	if call && c.l.LossyCalls {
		for i := range c.steps {
			if c.steps[i].Kind == history.OpDelete {
				c.steps[i].Kind = history.OpRead
			}
		}
	}
	body := func(t *txn.Txn) error { return c.s.run(t, c.steps, &c.res) }
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
	var proc *txn.ProcedureError
	switch {
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
