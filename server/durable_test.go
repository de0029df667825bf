package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/datadir"
	"drtmx/internal/testseed"
	"drtmx/tables"
	"drtmx/txn"
)

// openBank opens the embedded bank on a file system.
func openBank(t testing.TB, fs vfs.FS, servers, partitions int) (*Cluster, *tables.Table, *tables.Table) {
	t.Helper()
	cat := bank(t)
	cl, err := Embedded(context.Background(), EmbeddedConfig{
		Catalog: cat, Servers: servers, Partitions: partitions, Procedures: []txn.Procedure{transferProcedure(cat)},
		Durability: Disk, Dir: "data", FS: fs, SegmentBytes: 1 << 20, CheckpointRate: 1 << 40, Client: patient(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return cl, cat.MustTable("account"), cat.MustTable("entry")
}

// accountsIn is the balance of each account, and the sum of all.
func accountsIn(t testing.TB, cl *Cluster, acct *tables.Table, ids []uint64) (balances map[uint64]int64, sum int64) {
	t.Helper()
	balances = map[uint64]int64{}
	err := cl.DB.View(context.Background(), func(t *txn.Txn) error {
		clear(balances)
		sum = 0
		for _, id := range ids {
			row, err := t.Get(acct, tables.Num(id))
			if errors.Is(err, txn.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			balances[id] = row.Int(acct.Field("balance"))
			sum += balances[id]
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return balances, sum
}

// TestReopen: what was committed before a server was closed is there afterwards,
// inserts, updates and deletes, loaded rows and secondary indexes.
func TestReopen(t *testing.T) {
	for _, shape := range [][2]int{{1, 1}, {1, 4}} {
		t.Run(fmt.Sprintf("%d servers, %d partitions", shape[0], shape[1]), func(t *testing.T) {
			r := rand.New(rand.NewPCG(testseed.Of(t), 0))
			fs := vfs.NewMem()
			var ids []uint64
			for i := range uint64(40) {
				ids = append(ids, i)
			}
			want := map[uint64]int64{}
			for round := range 4 {
				cl, acct, _ := openBank(t, fs, shape[0], shape[1])
				if got := cl.Servers[0].Recovered(); int(got.Epoch) != round+1 || (round == 0) != (got.Rows == 0) {
					t.Errorf("round %d: recovered %+v", round, got)
				}
				if got, _ := accountsIn(t, cl, acct, ids); len(got) != len(want) {
					t.Fatalf("round %d: %d accounts, want %d", round, len(got), len(want))
				} else {
					for id, b := range want {
						if got[id] != b {
							t.Fatalf("round %d: account %d has %d, want %d", round, id, got[id], b)
						}
					}
				}
				for range 100 {
					id, amount := ids[r.IntN(len(ids))], int64(r.IntN(1000))
					other := ids[r.IntN(len(ids))]
					err := cl.DB.Update(context.Background(), func(t *txn.Txn) error {
						row := acct.NewRow()
						row.SetInt(acct.Field("id"), int64(id))
						row.SetInt(acct.Field("balance"), amount)
						row.SetInt(acct.Field("owner"), int64(id&3))
						if other != id && want[other] != 0 && amount%3 == 0 {
							if err := t.Delete(acct, tables.Num(other)); err != nil {
								return err
							}
						}
						return t.Put(acct, tables.Num(id), row)
					})
					if err != nil {
						t.Fatal(err)
					}
					if other != id && want[other] != 0 && amount%3 == 0 {
						delete(want, other)
					}
					want[id] = amount
				}
				for _, s := range cl.Servers {
					if err := s.Check(); err != nil {
						t.Error(err)
					}
				}
				if err := cl.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestDirectories: a directory that is in use, of another cluster or another
// catalogue is refused with an error that names it.
func TestDirectories(t *testing.T) {
	fs := vfs.NewMem()
	cl, _, _ := openBank(t, fs, 1, 2)
	open := func(change func(*EmbeddedConfig)) error {
		c := EmbeddedConfig{Catalog: bank(t), Partitions: 2, Durability: Disk, Dir: "data", FS: fs}
		change(&c)
		cl, err := Embedded(context.Background(), c)
		if err == nil {
			err = cl.Close()
			t.Errorf("opened")
		}
		return err
	}
	if err := open(func(*EmbeddedConfig) {}); !errors.Is(err, datadir.ErrInUse) {
		t.Errorf("a directory in use: %v", err)
	}
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	if err := open(func(c *EmbeddedConfig) { c.Partitions = 3 }); !errors.Is(err, datadir.ErrForeign) {
		t.Errorf("a directory of two partitions, opened with three: %v", err)
	}
	other, err := tables.NewCatalog(tables.Def{Name: "other", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByBits}, Columns: []tables.Column{{Name: "v", Type: tables.Int64}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := open(func(c *EmbeddedConfig) { c.Catalog = other }); !errors.Is(err, ErrConfig) {
		t.Errorf("a directory of other tables: %v", err)
	}
	if err := open(func(c *EmbeddedConfig) { c.Dir = "" }); !errors.Is(err, ErrConfig) {
		t.Errorf("no directory: %v", err)
	}
	if err := open(func(c *EmbeddedConfig) { c.Durability = Memory }); !errors.Is(err, ErrConfig) {
		t.Errorf("a directory in memory: %v", err)
	}
}

// TestReopenCatalog: tables, columns and indexes that were added while the
// cluster ran are there after a restart, with their rows.
func TestReopenCatalog(t *testing.T) {
	fs := vfs.NewMem()
	cl, _, _ := openBank(t, fs, 1, 2)
	ctx := context.Background()
	def := tables.Def{
		Name: "price", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByBits}, Grows: true,
		Columns: []tables.Column{{Name: "cents", Type: tables.Int64}},
	}
	price, err := cl.DB.AddTable(ctx, def)
	if err != nil {
		t.Fatal(err)
	}
	write := func(db *txn.DB, of *tables.Table, id uint64, values map[string]int64) {
		t.Helper()
		row := of.NewRow()
		for name, v := range values {
			row.SetInt(of.Field(name), v)
		}
		if err := db.Update(ctx, func(t *txn.Txn) error { return t.Insert(of, tables.Num(id), row) }); err != nil {
			t.Fatal(err)
		}
	}
	write(cl.DB, price, 1, map[string]int64{"cents": 100})
	if price, err = cl.DB.AddColumn(ctx, "price", tables.Column{Name: "tax", Type: tables.Int64}); err != nil {
		t.Fatal(err)
	}
	write(cl.DB, price, 2, map[string]int64{"cents": 200, "tax": 7})
	for round := range 3 {
		if err := cl.Close(); err != nil {
			t.Fatal(err)
		}
		cl, _, _ = openBank(t, fs, 1, 2)
		price, err := cl.DB.Catalog().Table("price")
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		err = cl.DB.View(ctx, func(v *txn.Txn) error {
			for id, want := range map[uint64][2]int64{1: {100, 0}, 2: {200, 7}} {
				row, err := v.Get(price, tables.Num(id))
				if err != nil {
					return err
				}
				if got := [2]int64{row.Int(price.Field("cents")), row.Int(price.Field("tax"))}; got != want {
					t.Errorf("round %d: price %d is %v, want %v", round, id, got, want)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestRolledBackIsNotCommitted: a procedure that has read rows of two servers and
// fails is validated there. After a restart nobody takes that for its commit.
func TestRolledBackIsNotCommitted(t *testing.T) {
	fs := vfs.NewMem()
	cat := bank(t)
	open := func() *Cluster {
		t.Helper()
		cl, err := Embedded(context.Background(), EmbeddedConfig{
			Catalog: cat, Servers: 2, Procedures: []txn.Procedure{transferProcedure(cat)},
			Durability: Disk, Dir: "data", FS: fs, SegmentBytes: 1 << 20,
		})
		if err != nil {
			t.Fatal(err)
		}
		return cl
	}
	cl := open()
	putAccounts(t, cl.DB, cat.MustTable("account"), 4, 10)
	before := 0
	for _, s := range cl.Servers {
		s.outcomes.mu.Lock()
		before += len(s.outcomes.fates)
		s.outcomes.mu.Unlock()
	}
	s, err := cl.DB.NewSession(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Call(context.Background(), txn.Home(0), "transfer", transferArgs(0, 1, 1000)); err == nil || errors.Is(err, txn.ErrUnavailable) {
		t.Fatalf("a transfer of money that is not there: %v", err)
	}
	if err := cl.Close(); err != nil { // without a word of the session
		t.Fatal(err)
	}
	cl = open()
	after := 0
	for _, s := range cl.Servers {
		s.outcomes.mu.Lock()
		after += len(s.outcomes.fates)
		s.outcomes.mu.Unlock()
	}
	if after > before {
		t.Errorf("%d sessions have committed, %d before the call that failed", after, before)
	}
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestRepeatedLoad: of two rows that are loaded for one key, in one message, the
// last one counts, in memory and after a restart.
func TestRepeatedLoad(t *testing.T) {
	fs := vfs.NewMem()
	cl, acct, _ := openBank(t, fs, 1, 1)
	l, err := cl.DB.NewLoader(context.Background(), acct)
	if err != nil {
		t.Fatal(err)
	}
	want := map[uint64]int64{}
	for i, id := range []uint64{5, 7, 5, 3, 7, 5, 9} {
		row := acct.NewRow()
		row.SetInt(acct.Field("id"), int64(id))
		row.SetInt(acct.Field("balance"), int64(10+i))
		want[id] = int64(10 + i)
		if err := l.Add(tables.Num(id), row); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		got, _ := accountsIn(t, cl, acct, []uint64{3, 5, 7, 9})
		for id, b := range want {
			if got[id] != b {
				t.Errorf("round %d: account %d has %d, want %d", round, id, got[id], b)
			}
		}
		if err := cl.Close(); err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			cl, acct, _ = openBank(t, fs, 1, 1)
		}
	}
}
