//go:build simulated

package server_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"drtmx/internal/history"
	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/server"
	"drtmx/txn"
)

// A cluster of kind lost has its data in memory alone, and loses some of it: a server
// is killed, and after a while another one starts in its place, with none of the
// memory. Nobody takes the second for the first, and the survivors keep no lock. What
// they hold is strictly serializable: a transaction that a lost server took part in
// has happened at all of them, or at none. Even if it was acknowledged it may have
// happened at none, when the server was lost before the others heard of the decision.

// losses are the servers whose memory was lost.
type losses struct {
	after, down         int // ms: the most until the next loss, and until a server starts again
	servers, partitions int
	bare                bool // the ordered table is: see load.Bare

	mu   sync.Mutex
	gone map[int]bool
}

// ofPartition reports whether the server of a partition was lost.
func (l *losses) ofPartition(p uint64) bool {
	return l.of(int(p%uint64(l.partitions)) % l.servers)
}

// ofKey reports whether the rows of a key of a history were lost.
func (l *losses) ofKey(k history.Key) bool {
	if k >= hashKeys {
		return l.ofPartition(uint64(k - hashKeys))
	}
	if l.bare {
		return l.ofPartition(uint64(k) >> bareShift)
	}
	return l.ofPartition(uint64(k) >> 2)
}

// ofEntry reports whether the entry that a row of n values has in a secondary index
// was lost.
func (l *losses) ofEntry(k history.Key, n int) bool {
	if k >= hashKeys {
		return l.ofPartition(uint64(k-hashKeys) >> 2)
	}
	return !l.bare && l.ofPartition(uint64(n))
}

// left is a history as the survivors have seen it: without what was read and written
// at servers that were lost. Of a transaction that writes there it is not known
// whether it has happened.
func (l *losses) left(h *history.History) (*history.History, error) {
	var txns []history.Txn
	for x := range h.All() {
		ops := x.Ops
		x.Ops = nil
		writes, there := false, false
		length := map[history.Key]int{}
		for _, op := range ops {
			n := length[op.Key]
			switch op.Kind {
			case history.OpScan:
				l.leftOfScan(&x, op)
				for k := op.Key; k <= op.Hi; k++ {
					there = there || l.ofKey(k) || l.ofEntry(k, 0)
				}
				continue
			case history.OpRead:
				n = len(op.List)
				length[op.Key] = n
			case history.OpAppend:
				length[op.Key]++
				writes = true
				there = there || l.ofEntry(op.Key, n) || l.ofEntry(op.Key, n+1)
			case history.OpDelete:
				writes = true
				there = there || l.ofEntry(op.Key, len(op.List))
				delete(length, op.Key)
			}
			if l.ofKey(op.Key) {
				there = true
				continue
			}
			x.Ops = append(x.Ops, op)
		}
		if writes && there && x.Outcome == history.Committed {
			x.Outcome = history.Unknown
		}
		txns = append(txns, x)
	}
	return history.FromTxns(txns)
}

// leftOfScan adds reads of those keys of a scan that survivors hold. That of keys of
// the table by hash reads an index.
func (l *losses) leftOfScan(x *history.Txn, op history.Op) {
	for k := op.Key; k <= op.Hi; k++ {
		if l.ofKey(k) || k >= hashKeys && l.ofEntry(k, 0) {
			continue
		}
		read := history.Op{Kind: history.OpRead, Key: k}
		if i := slices.IndexFunc(op.Rows, func(row history.Row) bool { return row.Key == k }); i >= 0 {
			read.List = op.Rows[i].List
		}
		x.Ops = append(x.Ops, read)
	}
}

// drawLosses draws a cluster of at least three servers, one of which survives.
func (r *simulation) drawLosses() {
	s, l := r.s, &r.l
	r.u.servers = 3 + s.Intn(2)
	r.u.partitions = r.u.servers * (1 + s.Intn(2))
	r.losses = &losses{
		after: []int{10, 50, 200}[s.Intn(3)], down: []int{5, 100, 5000}[s.Intn(3)],
		servers: r.u.servers, partitions: r.u.partitions, gone: map[int]bool{},
	}
	keep := l.TxnsPerClient
	manyDecisions(l, s)
	l.OpsPerTxn, l.Keys, l.TxnsPerClient = 2+s.Intn(4), 8+s.Intn(40), keep
	l.MemoryMayGo, l.AskUnknown = true, false
	l.Strings, l.Hows = false, l.Hows&^howSecondary // it is known where each row and entry is
	r.u.client.Retry = txn.Retry{Attempts: 200}
	if r.u.upset == nil {
		r.u.upset = newDisturbance(s)
	}
}

// lose kills servers, and starts others in their places.
func (r *simulation) lose(x *cluster, s *rng.Stream, done <-chan struct{}) error {
	for range 1 + s.Intn(3) {
		i := s.Intn(r.u.servers)
		r.sleep(between(s, 1, r.losses.after), done)
		if over(done) {
			return nil
		}
		if !r.w.Next("loss") || !r.losses.allow(i, r.u.servers) {
			continue
		}
		r.w.Event("the memory of server %d is lost", i)
		if err := x.net.Kill(x.addrs[i]); err != nil {
			return err
		}
		if err := x.Servers[i].Close(); err != nil {
			return fmt.Errorf("the server that was killed: %w", err)
		}
		r.sleep(between(s, 0, r.losses.down), done)
		var err error
		r.u.as(x.addrs[i], func() {
			var next *server.Server
			if next, err = server.New(r.u.config(x, i)); err == nil {
				x.Servers[i] = next
				err = next.Start()
			}
		})
		if err != nil {
			return fmt.Errorf("server %d, in the place of another: %w", i, err)
		}
	}
	return nil
}

// allow reports whether a server may be lost: another one must survive.
func (l *losses) allow(i, servers int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.gone[i] && len(l.gone) == servers-1 {
		return false
	}
	l.gone[i] = true
	return true
}

// of reports whether a server was lost.
func (l *losses) of(i int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone[i]
}

// survivors waits until no survivor has a transaction in doubt. Then it reads every
// key of the history that a survivor holds, and records what it finds; and writes
// each once more, so no lock may be left. A key of a server that was lost must be
// refused.
func (r *simulation) survivors(x *cluster, clients []*client, last *client) error {
	for end := time.Now().Add(testseed.Patience()); ; time.Sleep(10 * time.Millisecond) {
		left := 0
		for i, srv := range x.Servers {
			if !r.losses.of(i) {
				left += srv.InDoubt()
			}
		}
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("the survivors still have %d transactions in doubt", left)
		}
	}
	h, err := merge(clients)
	if err != nil {
		return err
	}
	ctx := context.Background()
	ends := lastKeys(h)
	for table := range 2 {
		for key := history.Key(0); key <= ends[table]; key++ {
			if err := r.oneKey(ctx, last, table, key); err != nil {
				return fmt.Errorf("key %d of table %d: %w", key, table, err)
			}
		}
	}
	return nil
}

// oneKey reads and writes a key of a survivor, or sees that it was lost. Requests may
// be lost with their connections, so each is tried again.
func (r *simulation) oneKey(ctx context.Context, c *client, table int, key history.Key) error {
	c.steps = append(c.steps[:0], step{PlanOp: history.PlanOp{Kind: history.OpRead, Key: key}, table: table})
	if r.losses.ofPartition(uint64(c.s.home(c.db, table, uint64(key)))) {
		for end := time.Now().Add(testseed.Patience()); time.Now().Before(end); time.Sleep(time.Millisecond) {
			switch err := c.look(ctx); {
			case !errors.Is(err, txn.ErrUnavailable):
				return fmt.Errorf("it was lost: %w", err)
			case errors.Is(err, txn.ErrRestarted):
				return nil
			}
		}
		return errors.New("the server that was started again is not noticed")
	}
	if err := retryUnavailable(func() error { return c.look(ctx) }); err != nil {
		return err
	}
	err := retryUnavailable(func() error {
		err := c.db.Update(ctx, func(t *txn.Txn) error {
			switch row, err := c.s.get(t, table, uint64(key)); {
			case err != nil:
				return err
			case row == nil:
				return nil
			}
			return c.s.remove(t, table, uint64(key))
		})
		if errors.Is(err, txn.ErrRestarted) || errors.Is(err, txn.ErrNotFound) {
			return nil // its entry in an index was lost; or there is no row
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("a transaction that writes the key: %w", err)
	}
	return nil
}

// lastKeys are the highest keys of the two tables in a history.
func lastKeys(h *history.History) (last [2]history.Key) {
	for x := range h.All() {
		for _, op := range x.Ops {
			if op.Key >= hashKeys {
				last[inHash] = max(last[inHash], op.Key-hashKeys)
			} else {
				last[inOrdered] = max(last[inOrdered], op.Key)
			}
		}
	}
	return last
}

// merge is the history of all clients.
func merge(clients []*client) (*history.History, error) {
	logs := make([]*history.Log, len(clients))
	for i, c := range clients {
		logs[i] = c.rec.Log()
	}
	return history.Merge(logs...)
}
