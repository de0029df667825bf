package server

import (
	"context"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/wire"
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
	p.adopt(tick + 5)
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
			parts[i] = cl.Servers[i%c.servers].parts[i]
			parts[i].mu.Lock()
			parts[i].adopt(parts[i].ticks.Tick() + clock.Tick(5000*i)) // seconds ahead of the others
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
	for p.indexes[tab.Primary().ID].Get(index.Num(key), nil).Status == index.Locked {
		if t.Context().Err() != nil {
			t.Fatal("the row stays locked")
		}
		time.Sleep(50 * time.Microsecond)
	}
}
