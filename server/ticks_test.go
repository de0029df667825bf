package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/hosting"
	"drtmx/internal/wire"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// csnOf returns the CSN of the commit that wrote an entry.
func csnOf(t *testing.T, p *partition, entry *tables.Table, key uint64) block.CSN {
	t.Helper()
	return block.Header(proofsOf(t, p, entry, key, index.Found)[0].Word).CSN()
}

// TestTicksAreAdopted: a partition applies a transaction at the tick of the
// decision, even if its own clock is behind, and later commits that overwrite
// what the transaction wrote or read have no smaller tick.
func TestTicksAreAdopted(t *testing.T) {
	s, p, entry := newRig(t)
	putEntries(t, s, entry, 10, 20)
	prep, v := p.prepare(&wire.Part{
		Rows:   proofsOf(t, p, entry, 20, index.Found),
		Writes: []wire.Write{writeOf(entry, wire.Update, 10)},
	})
	if !v.ok() {
		t.Fatal(v)
	}
	tick := prep.vote + 1000 // ten seconds ahead
	prep.decide(true, tick)
	if csn := csnOf(t, p, entry, 10); csn.Tick() != tick {
		t.Errorf("a commit of tick %d is stamped %v", tick, block.Present(csn))
	}
	for _, key := range []uint64{10, 20} {
		putEntries(t, s, entry, key)
		if csn := csnOf(t, p, entry, key); csn.Tick() < tick {
			t.Errorf("after a commit of tick %d, another has tick %d", tick, csn.Tick())
		}
	}
}

// TestLateDecisions: a transaction that was decided at a tick which this
// partition has left keeps that tick. Its rows get headers that are new at
// their addresses, and the next commits get higher ones.
func TestLateDecisions(t *testing.T) {
	s, p, entry := newRig(t)
	putEntries(t, s, entry, 10, 20, 30)
	var votes []*prepared
	for _, key := range []uint64{10, 20} {
		prep, v := p.prepare(&wire.Part{Writes: []wire.Write{writeOf(entry, wire.Update, key)}})
		if !v.ok() {
			t.Fatal(v)
		}
		votes = append(votes, prep)
	}
	tick := max(votes[0].vote, votes[1].vote)
	p.mu.Lock()
	p.ticks.adopt(tick + 5)
	p.mu.Unlock()
	putEntries(t, s, entry, 30)
	if csn := csnOf(t, p, entry, 30); csn.Tick() < tick+5 {
		t.Fatalf("a commit at tick %d is stamped %v", tick+5, block.Present(csn))
	}
	seen := map[block.CSN]bool{}
	for i, key := range []uint64{10, 20} {
		votes[i].decide(true, tick)
		late := csnOf(t, p, entry, key)
		if late.Tick() != tick || seen[late] {
			t.Errorf("a commit of tick %d is stamped %v, used before %v", tick, block.Present(late), seen[late])
		}
		seen[late] = true
		putEntries(t, s, entry, key)
		if csn := csnOf(t, p, entry, key); csn <= late || csn.Tick() < tick+5 {
			t.Errorf("stamped %v after %v, at tick %d", block.Present(csn), block.Present(late), tick+5)
		}
	}
}

// TestOneTickForAll: a transaction has one tick at all servers, however far
// their clocks are apart, and each next transaction on its rows has no smaller
// one. Two servers hand the decision over; three vote; partitions of one server
// commit in one step.
func TestOneTickForAll(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct{ servers, partitions int }{{2, 2}, {3, 3}, {1, 3}, {2, 4}} {
		cat := bank(t)
		cl, err := Embedded(ctx, EmbeddedConfig{Catalog: cat, Servers: c.servers, Partitions: c.partitions})
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		acct := cat.MustTable("account")
		putAccounts(t, cl.DB, acct, 24, 100)
		parts := make([]*partition, c.partitions)
		for i := range parts {
			parts[i] = cl.Servers[i%c.servers].parts.of[i]
			parts[i].mu.Lock()
			parts[i].ticks.adopt(parts[i].ticks.own.Tick() + clock.Tick(5000*i)) // seconds ahead of the others
			parts[i].mu.Unlock()
		}
		keys := make([]uint64, c.partitions) // one in each partition
		for id := uint64(24); id > 0; id-- {
			keys[acct.Primary().Partition.Of(tables.Num(id-1), c.partitions)] = id - 1
		}
		last := clock.Tick(0)
		for round := range 20 {
			err := cl.DB.Update(ctx, func(tx *txn.Txn) error {
				for i := range keys { // home at another partition each time
					if err := transfer(tx, acct, keys[(round+i)%len(keys)], keys[(round+i+1)%len(keys)], 1); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			ticks := map[clock.Tick]bool{}
			for i, p := range parts {
				awaitUnlocked(t, p, acct, keys[i])
				tick := csnOf(t, p, acct, keys[i]).Tick()
				ticks[tick] = true
				if tick < last {
					t.Errorf("%+v: round %d: tick %d after %d", c, round, tick, last)
				}
			}
			if len(ticks) != 1 {
				t.Errorf("%+v: round %d: one transaction has the ticks %v", c, round, ticks)
			}
			for tick := range ticks {
				last = tick
			}
		}
	}
}

// awaitUnlocked waits until the decision about a row has arrived.
func awaitUnlocked(t *testing.T, p *partition, tab *tables.Table, key uint64) {
	t.Helper()
	for p.index(tab.Primary().ID).Get(index.Num(key), nil).Status == index.Locked {
		if t.Context().Err() != nil {
			t.Fatal("the row stays locked")
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// ticksIn reads the published ticks of a partition, as a client does.
func ticksIn(p *partition) (closed, present clock.Tick) {
	closed = clock.Tick(p.control.Load(closedWord))
	return closed, clock.Tick(p.control.Load(tickWord))
}

// TestIdlePartitionsCloseTicks: the timer closes ticks where nothing commits,
// beside an executor that is busy.
func TestIdlePartitionsCloseTicks(t *testing.T) {
	cl, err := Embedded(context.Background(), EmbeddedConfig{Catalog: bank(t), Servers: 1, Partitions: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	parts := cl.Servers[0].parts.of
	parts[1].mu.Lock()
	held, _ := ticksIn(parts[1])
	for _, i := range []int{0, 2} {
		first, _ := ticksIn(parts[i])
		for last := first; last < first+3; {
			closed, present := ticksIn(parts[i])
			if closed < last || present <= closed {
				t.Fatalf("partition %d: closed %d after %d; then the present tick is %d", i, closed, last, present)
			}
			last = closed
			time.Sleep(time.Millisecond)
		}
	}
	if closed, _ := ticksIn(parts[1]); closed != held {
		t.Errorf("a busy partition closes tick %d after %d", closed, held)
	}
	parts[1].mu.Unlock()
	for closed := held; closed < held+3; closed, _ = ticksIn(parts[1]) {
		time.Sleep(time.Millisecond)
	}
}

// TestClosedWaitsForVotes: while a vote is in doubt, no tick is closed at which
// the transaction may still commit.
func TestClosedWaitsForVotes(t *testing.T) {
	s, p, entry := newRig(t)
	putEntries(t, s, entry, 10, 20)
	pass := func(ticks clock.Tick) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ticks.adopt(p.ticks.own.Tick() + ticks)
	}
	var votes []*prepared
	for _, key := range []uint64{10, 20} {
		prep, v := p.prepare(&wire.Part{Writes: []wire.Write{writeOf(entry, wire.Update, key)}})
		if !v.ok() {
			t.Fatal(v)
		}
		votes = append(votes, prep)
		pass(5)
	}
	published := func() (closed, present, tick clock.Tick) { // at one moment
		p.mu.Lock()
		defer p.mu.Unlock()
		closed, present = ticksIn(p)
		return closed, present, p.ticks.present()
	}
	for i, prep := range votes {
		pass(100)
		closed, present, tick := published()
		if closed != prep.vote-1 || present != tick {
			t.Errorf("closed %d at tick %d with a vote of tick %d in doubt; the present tick is %d", closed, present, prep.vote, tick)
		}
		prep.decide(i == 0, prep.vote)
	}
	if closed, present, _ := published(); closed != present-1 {
		t.Errorf("closed %d at tick %d without a vote in doubt", closed, present)
	}
}

// TestClosedTicksStay: beside transactions over servers whose clocks run fast
// and apart, no row ever gets a tick that was closed before.
func TestClosedTicksStay(t *testing.T) {
	const servers, keys, rounds = 3, 24, 60
	ctx := context.Background()
	cl, acct, _ := startBank(t, servers)
	putAccounts(t, cl.DB, acct, keys, 100)
	var work, watch sync.WaitGroup
	done := make(chan struct{})
	for i := range servers {
		p := cl.Servers[i].parts.of[i]
		watch.Go(func() {
			for tick := clock.Tick(1); ; tick++ {
				select {
				case <-done:
					return
				case <-time.After(time.Duration(30*(i+1)) * time.Microsecond):
				}
				p.mu.Lock()
				p.ticks.adopt(p.ticks.own.Tick() + 1 + clock.Tick(i))
				p.mu.Unlock()
			}
		})
		watch.Go(func() {
			if err := watchTicks(p, acct, keys, done); err != nil {
				t.Error(err)
			}
		})
	}
	for w := range uint64(3) {
		work.Go(func() {
			for n := range uint64(rounds) {
				err := cl.DB.Update(ctx, func(tx *txn.Txn) error {
					for i := range w + 1 {
						if err := transfer(tx, acct, (n+i*7)%keys, (n*5+i+w+1)%keys, 0); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil && !errors.Is(err, txn.ErrConflict) {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	close(done)
	watch.Wait()
}

// watchTicks reads the headers of a partition's rows again and again. It fails
// if a row gets a tick that had been closed before the row was last read. A
// locked header still has the CSN of the row as it was.
func watchTicks(p *partition, tab *tables.Table, keys uint64, done chan struct{}) error {
	ix := p.index(tab.Primary().ID)
	addrs, seen, closedAt := map[uint64]uint64{}, map[uint64]block.CSN{}, map[uint64]clock.Tick{}
	var res index.GetResult
	for n := uint64(0); ; n++ {
		select {
		case <-done:
			return nil
		default:
		}
		key := n % keys
		closed, _ := ticksIn(p)
		if addrs[key] == 0 {
			if ix.Lookup(index.Num(key), &res); res.Status == index.Found { // else another partition's, or locked
				addrs[key] = res.Proofs[0].Addr
			}
			continue
		}
		csn := block.Header(p.arena.Span(addrs[key], 1).Load(block.HeaderWord)).CSN()
		_, present := ticksIn(p)
		if was := seen[key]; was != 0 && csn != was && csn.Tick() <= closedAt[key] {
			return fmt.Errorf("row %d was of %v, and is of %v after tick %d was closed", key, block.Present(was), block.Present(csn), closedAt[key])
		}
		if csn.Tick() > present {
			return fmt.Errorf("row %d is of %v, and the published tick is %d", key, block.Present(csn), present)
		}
		seen[key], closedAt[key] = csn, closed
	}
}

// TestServersWhoseClocksDisagree: a server whose clock is years ahead commits
// no transaction with others, which keep their ticks. All servers go on with
// what is theirs, and nothing stays locked.
func TestServersWhoseClocksDisagree(t *testing.T) {
	for _, servers := range []int{2, 3} { // a hand-over, and votes
		ctx := context.Background()
		cl, acct, _ := startBank(t, servers)
		putAccounts(t, cl.DB, acct, 24, 100)
		bad := cl.Servers[1].parts.of[1]
		bad.mu.Lock()
		bad.ticks.adopt(bad.ticks.own.Tick() + clock.Tick(10*365*24*time.Hour/clock.TickLength))
		bad.mu.Unlock()
		keys := make([]uint64, servers)
		for id := uint64(24); id > 0; id-- {
			keys[acct.Primary().Partition.Of(tables.Num(id-1), servers)] = id - 1
		}
		for home := range keys {
			err := cl.DB.Update(ctx, func(tx *txn.Txn) error {
				for i := range keys {
					if err := transfer(tx, acct, keys[(home+i)%servers], keys[(home+i+1)%servers], 1); err != nil {
						return err
					}
				}
				return nil
			})
			if !errors.Is(err, txn.ErrUnavailable) || !strings.Contains(err.Error(), "clocks of servers") {
				t.Errorf("%d servers, home %d: %v", servers, home, err)
			}
		}
		for i, key := range keys {
			err := cl.DB.Update(ctx, func(tx *txn.Txn) error { return transfer(tx, acct, key, key, 0) })
			if err != nil {
				t.Errorf("server %d alone: %v", i, err)
			}
			if i != 1 && cl.Servers[i].parts.of[i].ticks.present() > bad.ticks.present()/2 {
				t.Errorf("server %d has adopted tick %d", i, cl.Servers[i].parts.of[i].ticks.present())
			}
		}
	}
}

// TestCommitsFollowWhatTheirClientHasSeen: however a client has learnt of a commit at a
// server whose clock is ahead, what it commits elsewhere after that has no lower tick.
// Or else a snapshot could have the second without the first.
func TestCommitsFollowWhatTheirClientHasSeen(t *testing.T) {
	ctx := context.Background()
	cl, acct, _ := startBank(t, 2)
	putAccounts(t, cl.DB, acct, 24, 100)
	at := make([]uint64, 2) // an account at each server
	for id := uint64(24); id > 0; id-- {
		at[acct.Primary().Partition.Of(tables.Num(id-1), 2)] = id - 1
	}
	addrs := []string{cl.Servers[0].Addr(), cl.Servers[1].Addr()}
	other, err := txn.Open(ctx, txn.Config{Servers: addrs, Dial: cl.Servers[0].cfg.Provider.Dial})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	update := func(db *txn.DB, server int) error {
		return db.Update(ctx, func(tx *txn.Txn) error { return transfer(tx, acct, at[server], at[server], 0) })
	}
	call := func(db *txn.DB, server int) error {
		_, err := db.Call(ctx, txn.Home(server), "transfer", transferArgs(at[server], at[server], 0))
		return err
	}
	read := func(tx *txn.Txn) error { _, err := tx.Get(acct, tables.Num(at[0])); return err }
	for name, learn := range map[string]func() error{
		"it has made one":            func() error { return update(cl.DB, 0) },
		"a call has made one":        func() error { return call(cl.DB, 0) },
		"a View has read one":        func() error { return cl.DB.View(ctx, read) },
		"a Snapshot has read one":    func() error { return cl.DB.Snapshot(ctx, read) },
		"another DB has told of one": func() error { err := update(other, 0); cl.DB.Observe(other.Token()); return err },
	} {
		for how, commit := range map[string]func(*txn.DB, int) error{"an update": update, "a call": call} {
			ahead := cl.Servers[0].parts.of[0]
			ahead.mu.Lock()
			ahead.ticks.adopt(max(ahead.ticks.own.Tick(), cl.Servers[1].clocks.now()) + 3000)
			tick := ahead.ticks.own.Tick()
			ahead.mu.Unlock()
			if got := cl.Servers[1].parts.of[1].ticks.present(); got >= tick {
				t.Fatalf("the clock of server 1 is at %d, want it behind %d", got, tick)
			}
			if err := errors.Join(learn(), commit(cl.DB, 1)); err != nil {
				t.Fatal(err)
			}
			if got := cl.Servers[1].parts.of[1].ticks.present(); got < tick {
				t.Errorf("%s, and then %s: ticks %d and %d", name, how, tick, got)
			}
		}
	}
}

// TestCommitsReadTheClock: a commit's tick is that of a clock read during the
// commit, although no timer has run since the last one: the server is not
// started. Or else a transaction could get a lower tick than one that ended
// before it at another server, and snapshots would have them in the wrong order.
func TestCommitsReadTheClock(t *testing.T) {
	s, err := New(Config{
		Addrs: []string{"a"}, Catalog: bank(t), Provider: inproc.New(inproc.Options{}), MemoryBytes: 1 << 26, hosted: hosting.Options{Work: hosting.Work{ManualTraining: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p, entry := s.parts.of[0], s.cfg.Catalog.MustTable("entry")
	for k := range uint64(3) {
		time.Sleep(clock.TickLength)
		began := clock.NewTicks().Now()
		sh, _ := shareOf(s, &wire.Commit{Parts: []wire.Part{{Writes: []wire.Write{writeOf(entry, wire.Insert, k)}}}})
		if v := sh.commit(); !v.ok() {
			t.Fatalf("insert %d: code %d", k, v.code)
		}
		if tick := p.ticks.present(); tick < began {
			t.Errorf("a commit that began in tick %d is of tick %d", began, tick)
		}
	}
}

// TestStaleSnapshotOfAYoungCluster: a snapshot that may be stale does not ask
// for a moment before the load, of which no partition has versions.
func TestStaleSnapshotOfAYoungCluster(t *testing.T) {
	for range 20 {
		cl, acct, _ := startBank(t, 3)
		putAccounts(t, cl.DB, acct, 6, 100)
		if err := cl.DB.Snapshot(t.Context(), func(x *txn.Txn) error {
			_, err := x.Get(acct, tables.Num(1))
			if errors.Is(err, txn.ErrNotFound) { // it was written after that moment
				return nil
			}
			return err
		}, txn.Staleness(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
}
