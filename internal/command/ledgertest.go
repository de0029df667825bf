package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/internal/rng"
	"drtmx/tpcc"
	"drtmx/txn"
	"drtmx/txn/stats"
)

const (
	// restTime is how long data servers must have done nothing.
	restTime = 300 * time.Millisecond
	// settleTimeout bounds the wait for transactions in doubt.
	settleTimeout = 30 * time.Second
	// copiedTimeout bounds the time until every data server has a copy in sync.
	copiedTimeout = 60 * time.Second
	// startHostTimeout bounds the time until a host serves, or keeps copies.
	startHostTimeout = 2 * time.Minute
	// victimDeadline is the longest deadline of a transaction.
	victimDeadline = 5 * time.Second
	// ledgerFaultsMax is how many faults are shown.
	ledgerFaultsMax = 10
)

// ledgerTest is what tpcc durability and a run with --chaos have in common: clients
// with ledgers, on data servers that are killed, and the comparison with what is there
// afterwards.
type ledgerTest struct {
	*app
	rnd     *rng.Stream
	people  io.Writer
	dir     string   // runtime directory of hosts
	s       *session // nil while no data servers run
	info    tpcc.LoadInfo
	clients []*ledgerKeeper
	// outcomes are those of transactions without an answer.
	outcomes map[txn.ID]bool
}

// ledgerFaults are differences between ledgers and database, of the kinds of
// tpcc.LedgerReport.
type ledgerFaults struct {
	Lost    int      `json:"lost"`
	Doubled int      `json:"doubled"`
	Wrong   int      `json:"wrong"`
	Phantom int      `json:"phantom"`
	Faults  []string `json:"faults,omitempty"` // the first ones
}

func (f *ledgerFaults) bad() bool { return len(f.Faults) > 0 }

// take fills in what a comparison has found.
func (f *ledgerFaults) take(l *tpcc.LedgerReport) {
	f.Lost += l.Count(tpcc.LedgerLost)
	f.Doubled += l.Count(tpcc.LedgerDoubled)
	f.Wrong += l.Count(tpcc.LedgerWrong)
	f.Phantom += l.Count(tpcc.LedgerPhantom)
	for _, fault := range l.Faults {
		f.fault(fault.String())
	}
}

func (f *ledgerFaults) fault(text string) {
	if len(f.Faults) < ledgerFaultsMax {
		f.Faults = append(f.Faults, text)
	}
}

// wrong adds a fault that no ledger has.
func (f *ledgerFaults) wrong(format string, args ...any) {
	f.Wrong++
	f.fault("wrong: " + fmt.Sprintf(format, args...))
}

// ledgerKeeper is a client with the ledger of all that it did.
type ledgerKeeper struct {
	*tpcc.LedgerClient
	entries   []tpcc.LedgerEntry
	committed atomic.Int64 // of entries: acknowledged
	last      atomic.Int64 // when the last one was, since keep
	gap       atomic.Int64 // longest time between two of them since it was set to 0
	deadlines *rng.Stream
	began     time.Time // the present transaction
}

// keep makes clients. ended, which may be nil, is called with each entry of a ledger,
// by several goroutines.
func (t *ledgerTest) keep(seed uint64, clients int, ended func(client int, d *tpcc.LedgerEntry)) {
	began := time.Now()
	for n := range clients {
		c := &ledgerKeeper{LedgerClient: tpcc.NewLedgerClient(seed, uint64(n), t.info), deadlines: rng.New(seed).SplitN(uint64(n)).Split("deadlines")}
		c.End = func(d tpcc.LedgerEntry) {
			if ended != nil {
				ended(n, &d)
			}
			c.entries = append(c.entries, d)
			if d.Outcome == tpcc.OutcomeCommitted {
				c.committed.Add(1)
				c.committedAt(time.Since(began))
			}
		}
		t.clients = append(t.clients, c)
	}
}

// committedAt takes note of a commit.
func (c *ledgerKeeper) committedAt(now time.Duration) {
	gap := int64(now) - c.last.Swap(int64(now))
	c.gap.Store(max(c.gap.Load(), gap))
}

// work runs transactions until ctx ends, or the database can no longer be used.
// Errors that the API does not allow are returned, but not if servers were killed.
// limit makes the deadline of each transaction, 0 for none.
func (c *ledgerKeeper) work(ctx context.Context, db *txn.DB, killed <-chan struct{}, limit func() time.Duration) error {
	sess, err := db.NewSession(ctx)
	if err != nil {
		return err
	}
	defer sess.Close()
	schema, err := tpcc.NewSchema(db.Catalog())
	if err != nil {
		return err
	}
	terminal := tpcc.NewTerminal(db, sess, schema, tpcc.TerminalConfig{})
	for ctx.Err() == nil {
		if err := c.runWithin(ctx, terminal, limit()); err != nil {
			select {
			case <-killed:
				return nil
			case <-ctx.Done():
				return nil
			default:
				return err
			}
		}
	}
	return nil
}

// noLimit is of transactions without deadlines.
func noLimit() time.Duration { return 0 }

// within returns random deadlines of half a second to a little more than
// victimDeadline.
func (c *ledgerKeeper) within() time.Duration {
	return time.Duration(c.deadlines.Uint64n(uint64(victimDeadline))) + victimDeadline/10
}

// runWithin is Run with a deadline, if limit is not 0.
func (c *ledgerKeeper) runWithin(ctx context.Context, terminal *tpcc.Terminal, limit time.Duration) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	c.began = time.Now()
	return c.Run(ctx, terminal)
}

// acknowledged is how many transactions all clients have been told of.
func (t *ledgerTest) acknowledged() (n int) {
	for _, c := range t.clients {
		n += int(c.committed.Load())
	}
	return n
}

// makeDir makes sure that the data directory is empty, or makes one, which is to
// be removed.
func (t *ledgerTest) makeDir(d *dataFlags, prefix string) (remove string, err error) {
	if d.durability == durabilityMemory {
		return "", nil
	}
	if d.dir == "" {
		d.dir, err = os.MkdirTemp("", prefix)
		return d.dir, err
	}
	entries, err := os.ReadDir(d.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if len(entries) > 0 {
		return "", cli.Usagef("--data-dir %s: it holds %s; this test loads its own data, want an empty or a new directory", d.dir, filepath.Base(entries[0].Name()))
	}
	return "", nil
}

// leave ends the data servers.
func (t *ledgerTest) leave() error {
	if t.s == nil {
		return nil
	}
	err := t.s.close()
	t.s = nil
	return err
}

// notCommitted says that a client has not committed for too long.
const notCommitted = "client %d has not committed anything for %v since all data servers serve"

// awaitCommits waits until every client has committed, but no longer than within. It
// returns a client that has not, -1 if all have.
func (t *ledgerTest) awaitCommits(ctx context.Context, within time.Duration) (left int, err error) {
	before := make([]int64, len(t.clients))
	for i, c := range t.clients {
		before[i] = c.committed.Load()
	}
	for end := time.Now().Add(within); ; {
		left = -1
		for i, c := range t.clients {
			if c.committed.Load() == before[i] {
				left = i
			}
		}
		if left < 0 || time.Now().After(end) {
			return left, nil
		}
		if err := t.wait(ctx, commitsTick); err != nil {
			return -1, err
		}
	}
}

// commitsTick is between looks whether clients have committed.
const commitsTick = 10 * time.Millisecond

// wait waits for some time, or for the loss of a data server that was not killed.
func (t *ledgerTest) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.s.Lost():
		_, _ = t.stderr.Write(t.s.Output())
		return t.s.Err()
	}
}

// hold compares all ledgers with the database, when no transaction is in doubt any
// more, and checks the conditions. recovered, which may be nil, is called with what
// data servers have recovered.
func (t *ledgerTest) hold(ctx context.Context, f *ledgerFaults, entries []tpcc.LedgerEntry, recovered func(*stats.Recovery)) (tpcc.Consistency, error) {
	if err := t.settle(ctx, f, recovered); err != nil {
		return nil, err
	}
	verdicts, err := tpcc.Check(ctx, t.s.db, tpcc.CheckConfig{AtRest: true})
	if errors.Is(err, tpcc.ErrNotLoaded) {
		for _, d := range entries {
			if d.Outcome == tpcc.OutcomeCommitted && d.Type != tpcc.OrderStatus {
				f.Lost++
			}
		}
		f.fault(fmt.Sprintf("lost: %v: all %d acknowledged transactions, and the initial population", err, f.Lost))
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	if err := verdicts.Err(); err != nil {
		f.wrong("%v", err)
	}
	ledger, err := tpcc.VerifyLedger(ctx, t.s.db, entries, func(id txn.ID) (bool, error) { return t.outcome(ctx, id) })
	if err != nil {
		return verdicts, fmt.Errorf("compare the ledgers: %w", err)
	}
	f.take(ledger)
	return verdicts, nil
}

// outcome asks for the outcome of a transaction. No transaction runs any more, so
// one that no data server knows has not committed and never will.
func (t *ledgerTest) outcome(ctx context.Context, id txn.ID) (bool, error) {
	if answer, ok := t.outcomes[id]; ok { // data servers need not remember it for ever
		return answer, nil
	}
	err := t.s.db.Outcome(ctx, id)
	if err != nil && !errors.Is(err, txn.ErrConflict) && !errors.Is(err, txn.ErrOutcomeUnknown) {
		return false, err
	}
	t.outcomes[id] = err == nil
	return err == nil, nil
}

// committed is how many of the transactions without an answer have committed.
func (t *ledgerTest) committed() (n int) {
	for _, committed := range t.outcomes {
		if committed {
			n++
		}
	}
	return n
}

// settle waits until no transaction is in doubt.
//
// A request of a client that has gone may have waited for one of them, and runs
// when that is over. So the data servers must have done nothing for some time.
func (t *ledgerTest) settle(ctx context.Context, f *ledgerFaults, recovered func(*stats.Recovery)) error {
	did, since := uint64(0), time.Now()
	for end := time.Now().Add(settleTimeout); ; {
		all, err := t.s.db.ServerStats(ctx)
		if err != nil && (!errors.Is(err, txn.ErrUnavailable) || time.Now().After(end)) {
			return err
		}
		doubt, done := 0, uint64(0)
		if err != nil {
			doubt++ // the connection may be one to a data server that was killed
		}
		for i := range all {
			doubt += all[i].Prepared
			for _, p := range all[i].Partitions {
				done += p.Commits
			}
			if rec := all[i].Recovery; rec != nil && recovered != nil {
				recovered(rec)
			}
		}
		if doubt > 0 || done != did {
			did, since = done, time.Now()
		}
		switch {
		case time.Since(since) >= restTime:
			return nil
		case time.Now().After(end):
			f.wrong("%d transactions are still in doubt after %v, or others still commit", doubt, settleTimeout)
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// states are those of the hosts.
func (t *ledgerTest) states(ctx context.Context) ([]cluster.ServerInfo, error) {
	info, err := cluster.Describe(ctx, t.dir)
	if err != nil {
		return nil, err
	}
	return info.Servers, nil
}

// running are the hosts that run.
func (t *ledgerTest) running(ctx context.Context) (all []int, err error) {
	states, err := t.states(ctx)
	for i, s := range states {
		if s.State == cluster.HostRuns {
			all = append(all, i)
		}
	}
	return all, err
}

// signal sends a signal to a host.
func (t *ledgerTest) signal(ctx context.Context, i int, s syscall.Signal) error {
	states, err := t.states(ctx)
	if err != nil {
		return err
	}
	if states[i].PID == 0 {
		return fmt.Errorf("host %d has no process: it %s", i, states[i].State)
	}
	return syscall.Kill(states[i].PID, s)
}

// startHost starts a host again that has ended. Another host may have its data server:
// then it is idle, or keeps copies.
func (t *ledgerTest) startHost(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, startHostTimeout)
	defer cancel()
	_, err := cluster.StartHost(ctx, t.dir, i)
	if states, derr := t.states(ctx); derr == nil && states[i].State == cluster.HostIdle {
		return nil
	}
	return err
}

// joinInts lists numbers.
func joinInts(all []int) string {
	var b strings.Builder
	for i, n := range all {
		if i > 0 {
			b.WriteString(" and ")
		}
		b.WriteString(strconv.Itoa(n))
	}
	return b.String()
}
