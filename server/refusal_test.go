package server_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// startSpread makes a cluster whose servers hold several partitions each.
func startSpread(t testing.TB, servers, partitions int) *cluster {
	t.Helper()
	s := newListSchema(4)
	c, err := server.Embedded(context.Background(), server.EmbeddedConfig{
		Catalog: s.cat, Procedures: s.procedures(), Servers: servers, Partitions: partitions, MemoryBytes: 1 << 28,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return &cluster{Cluster: c, s: s}
}

var spreads = []struct{ servers, partitions int }{{1, 1}, {1, 4}, {2, 2}, {2, 4}, {3, 6}}

// TestMovedRowsAreFound moves rows between the partitions of a secondary index.
// Nobody deletes a row, so no transaction may find one missing or present twice:
// an entry that another transaction moves changes the row that was read, too.
func TestMovedRowsAreFound(t *testing.T) {
	const workers, rows = 8, 12
	turns := 150
	if testing.Short() {
		turns = 40 // for the race detector, which makes all of it slow
	}
	for _, sp := range spreads {
		t.Run(fmt.Sprintf("%d servers, %d partitions", sp.servers, sp.partitions), func(t *testing.T) {
			x := startSpread(t, sp.servers, sp.partitions)
			for k := range uint64(rows) {
				if err := x.put(inOrdered, k, 1); err != nil {
					t.Fatal(err)
				}
			}
			var wg sync.WaitGroup
			for w := range workers {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(w), 1))
					for n := range turns {
						if err := x.move(rng); err != nil {
							t.Errorf("worker %d, turn %d: %v", w, n, err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// move changes the lengths of two rows, and so the partitions of their entries.
func (x *cluster) move(rng *rand.Rand) error {
	tab := x.s.tab[inOrdered]
	a, b := rng.Uint64N(12), rng.Uint64N(12)
	length := [2]int{1 + rng.IntN(4), 1 + rng.IntN(4)}
	return x.DB.Update(context.Background(), func(tx *txn.Txn) error {
		for i, k := range []uint64{a, b} {
			if _, err := tx.Get(tab, tables.Num(k)); err != nil {
				return err
			}
			if err := tx.Update(tab, tables.Num(k), x.s.row(inOrdered, k, make([]uint64, length[i])...)); err != nil {
				return err
			}
			if a == b {
				break
			}
		}
		return nil
	})
}

// TestRefusalsComeAtOnce: a transaction looks for a row that is not there and
// inserts it; another of its writes cannot be carried out. Its own placeholders
// do not fail its proofs, so that the refusal is the answer at once, wherever
// the two rows are and in whichever order they are written.
func TestRefusalsComeAtOnce(t *testing.T) {
	refusals := []struct {
		name string
		want error
		fn   func(x *cluster, tx *txn.Txn, key uint64) error
	}{
		{"insert of an existing row", txn.ErrExists, func(x *cluster, tx *txn.Txn, key uint64) error {
			return tx.Insert(x.s.tab[inHash], tables.Num(key), x.s.row(inHash, key, 9))
		}},
		{"delete of a missing row", txn.ErrNotFound, func(x *cluster, tx *txn.Txn, key uint64) error {
			return tx.Delete(x.s.tab[inOrdered], tables.Num(key+4000))
		}},
	}
	for _, sp := range spreads {
		x := startSpread(t, sp.servers, sp.partitions)
		for k := range uint64(8) {
			if err := x.put(inHash, k, 1); err != nil {
				t.Fatal(err)
			}
		}
		fresh := uint64(1000)
		for _, r := range refusals {
			for key := range uint64(4) {
				for _, last := range []bool{false, true} {
					fresh++
					name := fmt.Sprintf("%d servers, %d partitions, %s %d, refused row last %v", sp.servers, sp.partitions, r.name, key, last)
					x.refuse(t, name, fresh, last, r.want, func(tx *txn.Txn) error { return r.fn(x, tx, key) })
				}
			}
		}
	}
}

// refuse runs a transaction that inserts a fresh row of each table, after it
// has found them absent, and makes one write that is refused.
func (x *cluster) refuse(t *testing.T, name string, fresh uint64, last bool, want error, refused func(*txn.Txn) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testseed.Patience())
	defer cancel()
	attempts, start := 0, time.Now()
	err := x.DB.Update(ctx, func(tx *txn.Txn) error {
		attempts++
		if !last {
			if err := refused(tx); err != nil {
				return err
			}
		}
		for table := range 2 {
			if _, err := tx.Get(x.s.tab[table], tables.Num(fresh)); !errors.Is(err, txn.ErrNotFound) {
				return fmt.Errorf("row %d: %w", fresh, err)
			}
			if err := tx.Insert(x.s.tab[table], tables.Num(fresh), x.s.row(table, fresh, 1)); err != nil {
				return err
			}
		}
		if last {
			return refused(tx)
		}
		return nil
	})
	if !errors.Is(err, want) {
		t.Errorf("%s: %v after %d attempts and %v, want %v", name, err, attempts, time.Since(start).Round(time.Millisecond), want)
	} else if attempts > 3 {
		t.Errorf("%s: %d attempts", name, attempts)
	}
}
