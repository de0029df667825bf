package server_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"drtmx/internal/history"
	"drtmx/internal/testseed"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// Two sessions in step: one reads, the other changes what was read, then the
// first ends. Its attempt must not stand.

func (s *listSchema) row(table int, key uint64, values ...uint64) tables.Row {
	row := s.tab[table].NewRow()
	row.SetInt(s.key[table], int64(key))
	row.SetInt(s.count[table], int64(len(values)))
	var text []byte
	for _, v := range values {
		text = binary.LittleEndian.AppendUint64(text, v)
	}
	row.SetText(s.list[table], text)
	return row
}

func (s *listSchema) first(table int, row tables.Row) uint64 {
	return binary.LittleEndian.Uint64(row.Text(s.list[table]))
}

// change is what the other session does to key 10, which exists, key 11, which
// does not, and their neighbours 8 and 14.
type change struct {
	name string
	fn   func(x *cluster, table int) error
}

func (x *cluster) put(table int, key uint64, values ...uint64) error {
	return x.DB.Update(context.Background(), func(t *txn.Txn) error {
		return t.Put(x.s.tab[table], tables.Num(key), x.s.row(table, key, values...))
	})
}

func (x *cluster) drop(table int, key uint64) error {
	return x.DB.Update(context.Background(), func(t *txn.Txn) error { return t.Delete(x.s.tab[table], tables.Num(key)) })
}

var (
	rowChanges = []change{
		{"row changed", func(x *cluster, table int) error { return x.put(table, 10, 2) }},
		{"row changed and changed back", func(x *cluster, table int) error {
			for i := range 7 { // versions that come back after 2, 4 or 8 changes are back with the last
				if err := x.put(table, 10, uint64(i%4)); err != nil {
					return err
				}
			}
			return x.put(table, 10, 1)
		}},
		{"row deleted", func(x *cluster, table int) error { return x.drop(table, 10) }},
		{"row deleted and inserted again", func(x *cluster, table int) error {
			return errors.Join(x.drop(table, 10), x.put(table, 10, 1))
		}},
	}
	gapChanges = []change{
		{"absent row inserted", func(x *cluster, table int) error { return x.put(table, 11, 1) }},
	}
)

// look reads something that the change concerns; the result does not matter.
type look struct {
	name string
	gap  bool // of the absence of key 11, and of rows too if a scan
	scan bool
	fn   func(x *cluster, table int, t *txn.Txn) error
}

func looks() []look {
	get := func(key uint64) func(*cluster, int, *txn.Txn) error {
		return func(x *cluster, table int, t *txn.Txn) error {
			_, err := t.Get(x.s.tab[table], tables.Num(key))
			if errors.Is(err, txn.ErrNotFound) {
				err = nil
			}
			return err
		}
	}
	scan := func(lo, hi uint64, limit int) func(*cluster, int, *txn.Txn) error {
		return func(x *cluster, table int, t *txn.Txn) error {
			ix := x.s.byKey.ix
			if table == inOrdered {
				ix = x.s.tab[table].Primary()
			}
			_, err := t.QueueScan(ix, tables.Num(lo), tables.Num(hi), limit).Entries()
			return err
		}
	}
	return []look{
		{name: "get", fn: get(10)},
		{name: "get of nothing", gap: true, fn: get(11)},
		{name: "scan", gap: true, scan: true, fn: scan(0, 100, 0)},
		{name: "scan that ends behind", gap: true, scan: true, fn: scan(9, 11, 0)},
		{name: "scan that begins within", gap: true, fn: scan(11, 13, 0)},
		{name: "scan with a limit", gap: true, scan: true, fn: scan(9, 100, 2)},
	}
}

// endings are the ways in which a transaction's reads are validated.
var endings = []string{"View", "Update that writes there", "Update that writes elsewhere", "Update that fails"}

// attempts runs one transaction that looks, lets the change happen once, and
// ends; it returns how often its body ran.
func (x *cluster) attempts(table int, l look, c change, ending string) (n int, err error) {
	ctx := context.Background()
	body := func(t *txn.Txn) error {
		if err := l.fn(x, table, t); err != nil {
			return err
		}
		if n++; n == 1 {
			if err := c.fn(x, table); err != nil {
				return fmt.Errorf("change: %w", err)
			}
		}
		switch ending {
		case endings[1]:
			return t.Put(x.s.tab[table], tables.Num(13), x.s.row(table, 13, uint64(n)))
		case endings[2]:
			return t.Put(x.s.tab[1-table], tables.Num(1000), x.s.row(1-table, 1000, uint64(n)))
		case endings[3]:
			return errRollBack
		}
		return nil
	}
	if ending == endings[0] {
		return n, errors.Join(x.DB.View(ctx, body))
	}
	err = x.DB.Update(ctx, body)
	if ending == endings[3] && errors.Is(err, errRollBack) {
		err = nil
	}
	return n, err
}

// TestChangedReadsDoNotStand tries every kind of read against every change of
// what it read, in both kinds of table, validated in every way, in this
// partition and in another.
func TestChangedReadsDoNotStand(t *testing.T) {
	for _, servers := range []int{1, 3} {
		x := startCluster(t, newListSchema(4), servers, inproc.Options{}, txn.Config{})
		for table := range 2 {
			for _, l := range looks() {
				for _, ending := range endings {
					if err := x.tryChanges(table, l, ending); err != nil {
						t.Errorf("%d servers, table %s, %s, %s: %v", servers, x.s.tab[table].Name(), l.name, ending, err)
					}
				}
			}
		}
		for _, s := range x.Servers {
			if err := s.Check(); err != nil {
				t.Error(err)
			}
		}
		x.Close()
	}
}

func (x *cluster) tryChanges(table int, l look, ending string) error {
	var changes []change
	if !l.gap || l.scan {
		changes = append(changes, rowChanges...)
	}
	if l.gap {
		changes = append(changes, gapChanges...)
	}
	var errs []error
	for _, c := range changes {
		for _, key := range []uint64{8, 10, 14} {
			if err := x.put(table, key, 1); err != nil {
				return err
			}
		}
		if err := x.drop(table, 11); err != nil && !errors.Is(err, txn.ErrNotFound) {
			return err
		}
		switch n, err := x.attempts(table, l, c, ending); {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", c.name, err))
		case n < 2:
			errs = append(errs, fmt.Errorf("%s: the first attempt stood", c.name))
		}
	}
	return errors.Join(errs...)
}

// TestUnchangedReadsStand: what does not concern a transaction does not abort
// it. This is what makes the test above more than a refusal of everything.
func TestUnchangedReadsStand(t *testing.T) {
	x := startCluster(t, newListSchema(4), 1, inproc.Options{}, txn.Config{})
	defer x.Close()
	for table := range 2 {
		for _, key := range []uint64{8, 10, 14} {
			if err := x.put(table, key, 1); err != nil {
				t.Fatal(err)
			}
		}
		elsewhere := change{"elsewhere", func(x *cluster, table int) error { return x.put(table, 14, 2) }}
		for _, l := range looks() {
			if l.name != "get" && l.name != "scan that ends behind" && l.name != "scan with a limit" {
				continue
			}
			for _, ending := range endings {
				if l.name == "scan with a limit" {
					continue // key 14 is its second row
				}
				if n, err := x.attempts(table, l, elsewhere, ending); err != nil || n != 1 {
					t.Errorf("table %d, %s, %s: %d attempts, %v", table, l.name, ending, n, err)
				}
			}
		}
	}
}

// stepper runs a function in the middle of a round: between two work requests
// of one batch.
type stepper struct {
	fn     func()
	inside bool
}

func (s *stepper) yield() {
	if s.fn != nil && !s.inside {
		s.inside = true
		s.fn()
		s.inside = false
	}
}

// TestSwapIsNeverSeenHalf: of two keys exactly one exists at any time. They
// are swapped while a View reads the one, then the other, and again while it
// validates the one, then the other: each is absent whenever the View looks. A
// proof of absence by contents holds for both.
func TestSwapIsNeverSeenHalf(t *testing.T) {
	for table := range 2 {
		step := &stepper{}
		x := startCluster(t, newListSchema(4), 1, inproc.Options{Faults: inproc.Faults{Late: 1e-9}, Yield: step.yield}, txn.Config{})
		a, b := uint64(3), uint64(1000)
		if err := x.put(table, a, 1); err != nil {
			t.Fatal(err)
		}
		swap := func(from, to uint64) {
			step.inside = true
			defer func() { step.inside = false }()
			if err := x.DB.Update(context.Background(), func(t *txn.Txn) error {
				return errors.Join(t.Delete(x.s.tab[table], tables.Num(from)), t.Insert(x.s.tab[table], tables.Num(to), x.s.row(table, to, 1)))
			}); err != nil {
				t.Fatal(err)
			}
		}
		swap(a, b)
		swap(b, a) // as often as makes caches and slots settle
		at, both, attempts := a, 0, 0
		err := x.DB.View(context.Background(), func(tx *txn.Txn) error {
			attempts++
			step.fn = nil
			if attempts == 1 {
				swap(at, b) // a is absent
				at = b
			}
			_, errA := tx.Get(x.s.tab[table], tables.Num(a))
			if attempts == 1 {
				swap(b, a) // b is absent
				at = a
			}
			_, errB := tx.Get(x.s.tab[table], tables.Num(b))
			both = 0
			if errors.Is(errA, txn.ErrNotFound) && errors.Is(errB, txn.ErrNotFound) {
				both = 1
			}
			if attempts == 1 {
				swap(a, b) // a is absent while it is validated
				n := 0
				step.fn = func() {
					if n++; n == 2 { // the control words and a are read, b is not
						swap(b, a)
						at = a
					}
				}
			}
			return nil
		})
		step.fn = nil
		if err != nil {
			t.Fatal(err)
		}
		if both == 1 {
			t.Errorf("table %s: a View found neither of two keys of which one always exists", x.s.tab[table].Name())
		}
		x.Close()
	}
}

// TestStaleLocations: a client that remembers where a row was is not given the
// row that is there now.
func TestStaleLocations(t *testing.T) {
	x := startCluster(t, newListSchema(4), 1, inproc.Options{}, txn.Config{})
	defer x.Close()
	for key := uint64(1); key < 200; key++ {
		if err := x.put(inHash, key, key); err != nil {
			t.Fatal(err)
		}
		if err := x.DB.View(context.Background(), func(tx *txn.Txn) error {
			row, err := tx.Get(x.s.tab[inHash], tables.Num(key))
			if err == nil && x.s.first(inHash, row) != key {
				err = fmt.Errorf("key %d has the row of key %d", key, x.s.first(inHash, row))
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		// Deleted, and its block used by the next key.
		if err := errors.Join(x.drop(inHash, key), x.put(inHash, key+1000, key+1000)); err != nil {
			t.Fatal(err)
		}
		if err := x.DB.View(context.Background(), func(tx *txn.Txn) error {
			_, err := tx.Get(x.s.tab[inHash], tables.Num(key))
			return err
		}); !errors.Is(err, txn.ErrNotFound) {
			t.Fatalf("key %d, deleted, is found: %v", key, err)
		}
	}
}

// TestFailedCommitLeavesNoLock: a transaction whose last write is refused
// leaves the rows of the others free, in its own partition and in others.
func TestFailedCommitLeavesNoLock(t *testing.T) {
	for _, servers := range []int{1, 3} {
		x := startCluster(t, newListSchema(4), servers, inproc.Options{}, txn.Config{Retry: txn.Retry{Attempts: 20}})
		for table := range 2 {
			for key := range uint64(6) {
				if err := x.put(table, key, 1); err != nil {
					t.Fatal(err)
				}
			}
		}
		err := x.DB.Update(context.Background(), func(tx *txn.Txn) error {
			for table := range 2 {
				for key := range uint64(6) {
					if err := tx.Put(x.s.tab[table], tables.Num(key), x.s.row(table, key, 2)); err != nil {
						return err
					}
				}
				if err := tx.Put(x.s.tab[table], tables.Num(77), x.s.row(table, 77, 2)); err != nil {
					return err
				}
			}
			return tx.Insert(x.s.tab[inOrdered], tables.Num(5+1), x.s.row(inOrdered, 6, 2))
		})
		if err != nil {
			t.Fatal(err)
		}
		err = x.DB.Update(context.Background(), func(tx *txn.Txn) error {
			for table := range 2 {
				for key := range uint64(6) {
					if err := tx.Put(x.s.tab[table], tables.Num(key), x.s.row(table, key, 3)); err != nil {
						return err
					}
				}
			}
			return tx.Insert(x.s.tab[inHash], tables.Num(77), x.s.row(inHash, 77, 3)) // exists
		})
		if !errors.Is(err, txn.ErrExists) {
			t.Fatalf("insert of a key that exists: %v", err)
		}
		for table := range 2 {
			for key := range uint64(6) {
				if err := x.put(table, key, 4); err != nil {
					t.Errorf("%d servers: key %d of table %s after a failed commit: %v", servers, key, x.s.tab[table].Name(), err)
				}
			}
		}
		for _, s := range x.Servers {
			if err := s.Check(); err != nil {
				t.Error(err)
			}
		}
		x.Close()
	}
}

// TestRepeatedRequestsTakeEffectOnce: every request is delivered twice, and the
// list that a procedure appends to has each value once.
func TestRepeatedRequestsTakeEffectOnce(t *testing.T) {
	t.Parallel()
	// A request for a turn that comes again when the transaction has ended reserves rows
	// for nobody, until the lease ends. So most of the time is waiting.
	txns := 50
	if testseed.Soaking() {
		txns = 200
	}
	l := load{
		Seed: testseed.Of(t), Room: 24, Keys: 4, OpsPerTxn: 2, Clients: 3, Reads: 0.2, Calls: 0.7, TxnsPerClient: txns, Hows: howPut,
	}
	x := startCluster(t, newLists(&l), 3, inproc.Options{Faults: inproc.Faults{Duplicate: 1}, Seed: l.Seed}, txn.Config{})
	defer x.Close()
	out, err := x.run(t, &l)
	if err != nil {
		t.Error(err)
	}
	if rep := check(t, "repeated requests", out.h); !rep.OK() && !rep.Has(history.Duplicate) {
		t.Log("not for the expected reason")
	}
}
