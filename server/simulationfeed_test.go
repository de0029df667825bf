//go:build simulated

package server_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	clusters "drtmx/internal/cluster"
	"drtmx/internal/history"
	"drtmx/internal/rng"
	"drtmx/internal/sim"
	"drtmx/rdma"
	"drtmx/rdma/multi"
	"drtmx/txn"
)

// feedEnds bounds how long a feed may take to deliver all that has committed, once
// nothing goes wrong any more.
const feedEnds = 2 * time.Minute

// feedReader reads the changes of a cluster of lists, and makes the lists of them.
type feedReader struct {
	w  *sim.World
	x  *cluster
	s  *rng.Stream
	db *txn.DB
	// closes closes it, and what it needs.
	closes func() error
	from   txn.Cursor
	last   context.Context // of the last feed
	stop   func()
	// ended is closed when it reads no more, with err if something is wrong.
	ended chan struct{}
	err   error
	lost  bool // the logs no longer have what comes next: between two feeds nothing keeps them

	mu      sync.Mutex
	lists   map[feedPlace][]history.Value
	keys    map[feedPlace]history.Key
	at      map[feedEntry]int // the change that has appended it
	entries []int             // of each change
	tick    uint64
	closed  bool // the last change was the last one of its tick
	ends    int  // feeds that have ended
}

// feedEntry is a value in a list.
type feedEntry struct {
	key   history.Key
	value history.Value
}

// newFeed prepares to read the changes of a cluster; nil: this case has no feed. open
// opens a client of a process of its own, and may be called again if it fails.
func (r *simulation) newFeed(x *cluster, open func(context.Context) (*txn.DB, func() error, error)) (*feedReader, error) {
	s := rng.New(r.l.Seed).Split("feed")
	if r.job != nil || r.losses != nil || !s.Bool(0.3) || !r.w.Part("feed") {
		return nil, nil
	}
	f := &feedReader{
		w: r.w, x: x, s: s, lists: map[feedPlace][]history.Value{}, keys: map[feedPlace]history.Key{}, at: map[feedEntry]int{}, closed: true,
		ended: make(chan struct{}), closes: func() error { return nil },
	}
	f.last, f.stop = context.WithCancel(context.Background())
	ctx, cancel := context.WithTimeout(context.Background(), feedEnds)
	defer cancel()
	var err error
	f.w.As(feedName, func() {
		for {
			if f.db == nil {
				f.db, f.closes, err = open(ctx)
			}
			if f.db != nil {
				f.from, err = f.db.Now(ctx)
			}
			if err == nil || ctx.Err() != nil {
				return
			}
			time.Sleep(10 * time.Millisecond) // the fabric has lost something
		}
	})
	return f, err
}

const feedName = "feed"

// openFeed opens the client of a feed of servers that stay where they are.
func (r *simulation) openFeed(x *cluster) func(context.Context) (*txn.DB, func() error, error) {
	c := r.u.client
	c.Servers, c.Dial = x.addrs, r.u.provider(x.net, rdma.Identity{Role: rdma.RoleLoader, Name: feedName}).Dial
	return func(ctx context.Context) (*txn.DB, func() error, error) {
		db, err := txn.Open(ctx, c)
		if err != nil {
			return nil, nil, err
		}
		return db, db.Close, nil
	}
}

// openFeed opens the client of a feed of servers that other hosts take over.
func (h *hosts) openFeed(ctx context.Context) (*txn.DB, func() error, error) {
	f := &multi.Provider{TCP: h.w.Provider(h.net.As(rdma.Identity{Role: rdma.RoleLoader, Name: feedName}), feedName)}
	c, err := clusters.Follow(ctx, f, h.members.open(feedName))
	if err != nil {
		return nil, nil, err
	}
	cfg := c.Config()
	cfg.Seed = 1
	db, err := txn.Open(ctx, cfg)
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return db, func() error { return errors.Join(db.Close(), c.Close()) }, nil
}

// follow reads changes, with feeds that end now and then until done is closed. The last
// one goes on until f.stop is called, while the last client commits and after it.
func (f *feedReader) follow(done <-chan struct{}) error {
	for f.last.Err() == nil && !f.lost {
		ctx, cancel := context.WithCancel(f.last)
		most := -1
		if !over(done) {
			if f.s.Bool(0.5) {
				ctx, cancel = context.WithTimeout(f.last, between(f.s, 1, 500))
			}
			if f.s.Bool(0.5) {
				most = f.s.Intn(40)
			}
			go func() {
				select {
				case <-done:
					cancel()
				case <-ctx.Done():
				}
			}()
		}
		err := f.read(ctx, most)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// read reads changes until ctx ends, or so many of them. An error is what must not be.
func (f *feedReader) read(ctx context.Context, most int) (err error) {
	f.ends++
	memory := []int{0, 0, 1, 5_000}[f.s.Intn(4)]
	f.w.As(feedName, func() {
		for c, e := range f.db.Changes(ctx, f.from, txn.ChangesMemory(memory)) {
			var old *txn.ChangesTooOld
			switch {
			case errors.As(e, &old):
				f.lost = true
				return
			case ctx.Err() != nil:
				return
			case errors.Is(e, txn.ErrUnavailable):
				time.Sleep(10 * time.Millisecond) // or one that fails at once is read for ever at one time
				return
			case e != nil:
				err = fmt.Errorf("the feed has ended: %w", e)
				return
			}
			f.mu.Lock()
			err = f.take(&c)
			f.mu.Unlock()
			if err != nil {
				return
			}
			if f.from, err = txn.ParseCursor(c.Cursor.String()); err != nil {
				return
			}
			if most--; most == 0 {
				return
			}
		}
	})
	return err
}

// take applies a change, and finds what is wrong with it.
func (f *feedReader) take(c *txn.Change) error {
	if c.Tick < f.tick || c.Tick == f.tick && f.closed && len(f.entries) > 0 || c.Tick > f.tick && !f.closed {
		return fmt.Errorf("feed: a change of tick %d after one of tick %d, the last one of its tick: %v", c.Tick, f.tick, f.closed)
	}
	f.tick, f.closed = c.Tick, c.Last
	n := len(f.entries)
	f.entries = append(f.entries, 0)
	for i := range c.Writes {
		w := &c.Writes[i]
		p := feedPlace{w.Table.Name(), w.Key}
		was, there := f.lists[p]
		if (w.Kind == txn.Inserted) == there || w.Kind == txn.Loaded {
			return fmt.Errorf("feed: tick %d: %s %v is %v, it was there: %v", c.Tick, p.table, p.key, w.Kind, there)
		}
		if w.Kind == txn.Deleted {
			delete(f.lists, p)
			continue
		}
		list, err := f.listOf(w, p)
		if err != nil {
			return err
		}
		f.lists[p] = list
		if len(list) > len(was) && slices.Equal(list[:len(was)], was) {
			list = list[len(was):]
		} // else its transaction has deleted it first, and all is new
		for _, v := range list {
			e := feedEntry{f.keys[p], v}
			if before, seen := f.at[e]; seen {
				return fmt.Errorf("feed: tick %d: change %d appends %d to key %d, as change %d did", c.Tick, n, v, e.key, before)
			}
			f.at[e] = n
			f.entries[n]++
		}
	}
	return nil
}

// listOf is the list of a row that was written, whose key it notes.
func (f *feedReader) listOf(w *txn.Write, p feedPlace) ([]history.Value, error) {
	s := f.x.s
	table := inOrdered
	key := history.Key(0)
	if p.table == s.tab[inHash].Name() {
		table, key = inHash, hashKeys
	}
	var r results
	list := r.row(&result{}, 0, s.text(w.Row, s.list[table]))
	if n := w.Row.Int(s.count[table]); int(n) != len(list) {
		return nil, fmt.Errorf("feed: %s %v says %d values, has %d", p.table, p.key, n, len(list))
	}
	f.keys[p] = key + history.Key(w.Row.Int(s.key[table]))
	return list, nil
}

// finish waits until all is there that has committed, and compares it with what the
// clients know.
func (f *feedReader) finish(h *history.History) error {
	var left []feedEntry
	for x := range h.All() {
		if x.Outcome == history.Committed {
			left = append(left, appended(&x)...)
		}
	}
	all := func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		left = slices.DeleteFunc(left, func(e feedEntry) bool { _, there := f.at[e]; return there })
		return len(left) == 0
	}
	end := time.Now().Add(feedEnds)
	for !over(f.ended) && !all() && time.Now().Before(end) {
		time.Sleep(10 * time.Millisecond)
	}
	f.stop()
	<-f.ended
	switch {
	case f.err != nil:
		return f.err
	case !f.lost && !all():
		return fmt.Errorf("feed: %d values that were acknowledged have not come after %v, such as %d of key %d", len(left), feedEnds, left[0].value, left[0].key)
	}
	return f.compare(h)
}

// appended is what a transaction leaves in lists, if it commits.
func appended(x *history.Txn) (es []feedEntry) {
	for _, op := range x.Ops {
		switch op.Kind {
		case history.OpAppend:
			es = append(es, feedEntry{op.Key, op.Value})
		case history.OpDelete:
			es = slices.DeleteFunc(es, func(e feedEntry) bool { return e.key == op.Key })
		}
	}
	return es
}

// compare checks that each transaction is one change, with all that it has appended and
// nothing else, and that none is of one that was aborted.
func (f *feedReader) compare(h *history.History) error {
	var errs []error
	bad := func(x *history.Txn, format string, args ...any) {
		if len(errs) < 5 {
			errs = append(errs, fmt.Errorf("feed: transaction %v, %v: %s", x.ID, x.Outcome, fmt.Sprintf(format, args...)))
		}
	}
	for x := range h.All() {
		es, changes, found := appended(&x), map[int]bool{}, 0
		for _, e := range es {
			if n, there := f.at[e]; there {
				changes[n], found = true, found+1
			}
		}
		switch {
		case found == 0 && (x.Outcome != history.Committed || f.lost || len(es) == 0):
		case x.Outcome == history.Aborted:
			bad(&x, "%d of its %d values are in the feed", found, len(es))
		case found < len(es) || len(changes) > 1:
			bad(&x, "%d of its %d values are in the feed, in %d changes", found, len(es), len(changes))
		default:
			for n := range changes {
				if f.entries[n] != len(es) {
					bad(&x, "its change has %d values, want %d", f.entries[n], len(es))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// begin reads changes in a goroutine of its own.
func (f *feedReader) begin(done <-chan struct{}) {
	go func() {
		defer close(f.ended)
		f.err = f.follow(done)
	}()
}

// end closes what a feed needs.
func (f *feedReader) end() {
	f.stop()
	<-f.ended
	f.w.As(feedName, func() { _ = f.closes() })
}

// report counts what it has done.
func (f *feedReader) report(counts map[string]int) {
	counts["changes"] += len(f.entries)
	counts["feeds"] += f.ends
	if f.lost {
		counts["feeds too old"]++
	}
}
