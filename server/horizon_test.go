package server_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"drtmx/tables"
	"drtmx/txn"
)

// horizonPart is the partition whose horizon the tests lower.
const horizonPart = 1

// horizons runs transactions beside a partition whose newest commits are not
// durable.
type horizons struct {
	*testing.T
	v   *vaults
	s   *txn.Session
	tab *tables.Table

	past bool // with Snapshots, whose reads are the same over all fabrics
}

func (h *horizons) lower(lowered bool) { h.v.servers[horizonPart].SetHorizon(horizonPart, lowered) }

func (h *horizons) update(fn func(x *txn.Txn) error) {
	h.Helper()
	if err := h.v.db.Update(h.Context(), fn); err != nil {
		h.Fatal(err)
	}
}

// waits checks that a transaction which rests on a commit that is not durable
// ends only when it is.
func (h *horizons) waits(what string, patience time.Duration, run func(ctx context.Context) error) {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), patience)
	err := run(ctx)
	cancel()
	if !errors.Is(err, context.DeadlineExceeded) {
		h.Errorf("%s: %s ends before its answer is durable: %v", h.tab.Name(), what, err)
		return
	}
	raised := make(chan time.Time, 1)
	time.AfterFunc(2*time.Millisecond, func() {
		raised <- time.Now()
		h.lower(false)
	})
	err = run(h.Context())
	end := time.Now()
	if at := <-raised; err != nil && !errors.Is(err, errOfBody) || end.Before(at) {
		h.Errorf("%s: %s with a horizon that is raised: %v, ended %v after that", h.tab.Name(), what, err, end.Sub(at))
	}
}

// free checks that a transaction which rests on nothing new, after a change,
// takes as many rounds as if all were durable.
func (h *horizons) free(what string, change func(), run func(ctx context.Context) error) {
	h.Helper()
	rounds := func() uint64 {
		before := h.s.Stats().Rounds
		if err := run(h.Context()); err != nil {
			h.Fatalf("%s: %s: %v", h.tab.Name(), what, err)
		}
		return h.s.Stats().Rounds - before
	}
	// Models may be trained meanwhile, and then are loaded.
	least := func() uint64 { return min(rounds(), rounds(), rounds()) }
	h.lower(false)
	rounds() // fills caches
	want := least()
	h.lower(true)
	change()
	if got := least(); got != want {
		h.Errorf("%s: %s rests on nothing new and takes %d rounds, want %d", h.tab.Name(), what, got, want)
	}
}

var errOfBody = errors.New("the body's own error")

// TestHorizonIsWaitedFor: whatever a transaction that writes nothing returns is
// durable: rows, absences, ranges, pages of iterators, errors of the body, in
// Views, read-only Updates and Snapshots, by READs and by RPC. What rests on
// nothing new waits for nothing.
func TestHorizonIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, f := range vaultFabrics(t) {
		if f.hostile {
			continue // its rounds are not exact
		}
		t.Run(f.name, func(t *testing.T) {
			v := startVaults(t, f, 2, 60, nil)
			for _, reads := range []txn.ReadPath{txn.OneSided, txn.OrderedByRPC} {
				db, err := txn.Open(t.Context(), txn.Config{Servers: addrsOf(v.servers), AllServers: true, Dial: f.provider.Dial, Reads: reads})
				if err != nil {
					t.Fatal(err)
				}
				defer db.Close()
				s, err := db.NewSession(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				for _, name := range vaultTables {
					h := &horizons{T: t, v: v, s: s, tab: v.table(name), past: reads == txn.OneSided && f.name == "inproc"}
					if reads == txn.OrderedByRPC && h.tab.Def().Primary == tables.Hash {
						continue
					}
					h.run(v.at(t, h.tab, horizonPart, 3))
				}
			}
		})
	}
}

// run changes one key, deletes the second, and leaves the third.
func (h *horizons) run(keys []tables.Key) {
	defer h.lower(false)
	changed, deleted, old := keys[0], keys[1], keys[2]
	get := func(key tables.Key) func(x *txn.Txn) error {
		return func(x *txn.Txn) error {
			_, err := x.Get(h.tab, key)
			if errors.Is(err, txn.ErrNotFound) {
				return nil
			}
			return err
		}
	}
	ranged := func(key tables.Key) func(x *txn.Txn) error {
		return func(x *txn.Txn) error {
			_, err := x.QueueScan(h.tab.Primary(), key, key, 0).Entries()
			return err
		}
	}
	view := func(fn func(x *txn.Txn) error) func(ctx context.Context) error {
		return func(ctx context.Context) error { return h.s.View(ctx, fn) }
	}
	const short = 8 * time.Millisecond
	ordered := h.tab.Def().Primary == tables.Ordered
	fresh := func(change func()) {
		h.lower(true)
		change()
	}
	put := func() {
		h.update(func(x *txn.Txn) error { return x.Put(h.tab, changed, h.v.row(h.tab, vaultBalance, 7)) })
	}

	insert := func() {
		h.update(func(x *txn.Txn) error { return x.Put(h.tab, deleted, h.v.row(h.tab, vaultBalance, 7)) })
	}

	h.free("a row", put, view(get(old)))
	if ordered {
		h.free("a range", put, view(ranged(old)))
	}
	h.waits("a row", short, view(get(changed)))
	if ordered {
		fresh(put)
		h.waits("a range", short, view(ranged(changed)))
		for _, reverse := range []bool{false, true} {
			fresh(put)
			h.waits("an iterator", 50*time.Millisecond, view(func(x *txn.Txn) error {
				all := x.Scan(h.tab.Primary(), tables.First, tables.Last)
				if reverse {
					all = x.ScanReverse(h.tab.Primary(), tables.First, tables.Last)
				}
				for _, err := range all {
					if err != nil {
						return err
					}
				}
				return nil
			}))
		}
	}
	fresh(put)
	h.waits("an error", short, view(func(x *txn.Txn) error { return errors.Join(get(changed)(x), errOfBody) }))
	fresh(put)
	h.waits("a read-only Update", short, func(ctx context.Context) error { return h.s.Update(ctx, get(changed)) })
	if h.past {
		h.snapshots(get(changed), put)
	}

	insert()
	fresh(func() { h.update(func(x *txn.Txn) error { return x.Delete(h.tab, deleted) }) })
	h.waits("an absence", short, view(get(deleted)))
	if ordered {
		fresh(func() {
			insert()
			h.update(func(x *txn.Txn) error { return x.Delete(h.tab, deleted) })
		})
		h.waits("an empty range", short, view(ranged(deleted)))
	}
}

// snapshots reads a key that put changes, in Snapshots.
func (h *horizons) snapshots(get func(x *txn.Txn) error, put func()) {
	h.lower(true)
	put()
	h.waits("a Snapshot", 80*time.Millisecond, func(ctx context.Context) error { return h.s.Snapshot(ctx, get) })
	h.lower(true)
	put()
	h.waits("an error of a Snapshot", 80*time.Millisecond, func(ctx context.Context) error {
		return h.s.Snapshot(ctx, func(x *txn.Txn) error { return errors.Join(get(x), errOfBody) })
	})
	h.lower(true)
	h.waits("a View that goes on as a Snapshot", 200*time.Millisecond, func(ctx context.Context) error {
		before := h.s.Stats().Overtaken
		return h.s.View(ctx, func(x *txn.Txn) error {
			err := get(x)
			if h.s.Stats().Overtaken == before {
				put()
			}
			return err
		})
	})
}
