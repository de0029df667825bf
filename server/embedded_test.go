package server

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"drtmx/internal/testseed"
	"drtmx/tables"
	"drtmx/txn"
)

// TestMain runs more tests at once than there are processors, because they mostly
// wait. It checks that no goroutine is left.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// bank has accounts in a hash table, entries in an ordered one (by account in
// the high bits) and a secondary index by owner.
func bank(t testing.TB) *tables.Catalog {
	t.Helper()
	c, err := tables.NewCatalog(
		tables.Def{
			Name: "account", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByBits},
			Columns: []tables.Column{{Name: "id", Type: tables.Int64}, {Name: "balance", Type: tables.Int64}, {Name: "owner", Type: tables.Int32}},
			Secondary: []tables.Secondary{{
				Name: "by_owner", Include: []string{"balance"}, Partition: tables.Partitioning{Kind: tables.ByBits, Shift: 32},
				Key: []tables.KeyPart{{Column: "owner", Bits: 32, How: tables.Value}, {Column: "id", Bits: 32, How: tables.Value}},
			}},
		},
		tables.Def{
			Name: "entry", Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByBits, Shift: 32},
			Columns: []tables.Column{{Name: "amount", Type: tables.Int64}},
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// patient is a client whose transactions give up only when a test would.
func patient() txn.Config { return txn.Config{Retry: txn.Retry{Patience: testseed.Patience()}} }

func startBank(t testing.TB, servers int) (*Cluster, *tables.Table, *tables.Table) {
	t.Helper()
	cat := bank(t)
	cl, err := Embedded(context.Background(), EmbeddedConfig{
		Catalog: cat, Servers: servers, Procedures: []txn.Procedure{transferProcedure(cat)}, Client: patient(),
		Retain: testseed.Patience(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, s := range cl.Servers {
			if err := s.Check(); err != nil {
				t.Error(err)
			}
		}
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	})
	return cl, cat.MustTable("account"), cat.MustTable("entry")
}

var errPoor = errors.New("not enough money")

func transfer(t *txn.Txn, acct *tables.Table, from, to uint64, amount int64) error {
	bal := acct.Field("balance")
	a, b := t.QueueGet(acct, tables.Num(from)), t.QueueGet(acct, tables.Num(to))
	ra, err := a.Row()
	if err != nil {
		return err
	}
	rb, err := b.Row()
	if err != nil {
		return err
	}
	ra, rb = ra.Clone(), rb.Clone()
	if ra.Int(bal) < amount {
		return errPoor
	}
	ra.SetInt(bal, ra.Int(bal)-amount)
	rb.SetInt(bal, rb.Int(bal)+amount)
	if err := t.Update(acct, tables.Num(from), ra); err != nil {
		return err
	}
	return t.Update(acct, tables.Num(to), rb)
}

func transferProcedure(c *tables.Catalog) txn.Procedure {
	return txn.Procedure{Name: "transfer", Body: func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
		le := binary.LittleEndian
		return []byte("done"), transfer(t, c.MustTable("account"), le.Uint64(args), le.Uint64(args[8:]), int64(le.Uint64(args[16:])))
	}}
}

func transferArgs(from, to uint64, amount int64) (b []byte) {
	le := binary.LittleEndian
	return le.AppendUint64(le.AppendUint64(le.AppendUint64(b, from), to), uint64(amount))
}

// unlessSlow repeats what fails, without effect, because one server has waited for
// another for as long as it does: a machine that is slow enough makes both late.
func unlessSlow(do func() error) error {
	for end := time.Now().Add(testseed.Patience()); ; {
		err := do()
		if !errors.Is(err, txn.ErrUnavailable) || errors.Is(err, txn.ErrOutcomeUnknown) ||
			!strings.Contains(err.Error(), context.DeadlineExceeded.Error()) || time.Now().After(end) {
			return err
		}
	}
}

func putAccounts(t testing.TB, db *txn.DB, acct *tables.Table, n int, balance int64) {
	t.Helper()
	for id := uint64(0); id < uint64(n); id++ {
		row := acct.NewRow()
		row.SetInt(acct.Field("id"), int64(id))
		row.SetInt(acct.Field("balance"), balance)
		row.SetInt(acct.Field("owner"), int64(id%7))
		if err := unlessSlow(func() error {
			return db.Update(context.Background(), func(t *txn.Txn) error { return t.Insert(acct, tables.Num(id), row) })
		}); err != nil {
			t.Fatalf("insert account %d: %v", id, err)
		}
	}
}

func total(ctx context.Context, db *txn.DB, acct *tables.Table, n int) (sum, bySecondary int64, err error) {
	err = db.View(ctx, func(t *txn.Txn) error {
		sum, bySecondary = 0, 0
		var gets []*txn.QueuedGet
		for id := range uint64(n) {
			gets = append(gets, t.QueueGet(acct, tables.Num(id)))
		}
		ix := acct.Secondary("by_owner")
		es, err := t.QueueScan(ix, tables.Num(0), tables.Last, 0).Entries()
		if err != nil {
			return err
		}
		for _, e := range es {
			bySecondary += e.Row.Int(ix.Field("balance"))
		}
		for _, g := range gets {
			row, err := g.Row()
			if err != nil {
				return err
			}
			sum += row.Int(acct.Field("balance"))
		}
		return nil
	})
	return sum, bySecondary, err
}

func TestReadYourWritesAndErrors(t *testing.T) {
	ctx := context.Background()
	cl, acct, entry := startBank(t, 3)
	db := cl.DB
	putAccounts(t, db, acct, 10, 100)
	amount := entry.Field("amount")
	if err := db.Update(ctx, func(t *txn.Txn) error {
		for k := uint64(1); k <= 5; k++ {
			row := entry.NewRow()
			row.SetInt(amount, int64(k))
			if err := t.Insert(entry, tables.Num(k*10), row); err != nil {
				return err
			}
		}
		if err := t.Delete(entry, tables.Num(30)); err != nil {
			return err
		}
		es, err := t.QueueScan(entry.Primary(), tables.Num(0), tables.Num(1000), 3).Entries()
		if err != nil {
			return err
		}
		if len(es) != 3 || es[0].Key.Num() != 10 || es[1].Key.Num() != 20 || es[2].Key.Num() != 40 {
			return fmt.Errorf("scan of own writes: %v", es)
		}
		if _, err := t.Get(entry, tables.Num(30)); !errors.Is(err, txn.ErrNotFound) {
			return fmt.Errorf("get of own delete: %v", err)
		}
		if row, err := t.Get(entry, tables.Num(50)); err != nil || row.Int(amount) != 5 {
			return fmt.Errorf("get of own insert: %v %v", row, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := db.View(ctx, func(t *txn.Txn) error {
		es, err := t.QueueScan(entry.Primary(), tables.Num(11), tables.Num(49), 0).Entries()
		if err == nil && (len(es) != 2 || es[1].Key.Num() != 40) {
			err = fmt.Errorf("scan: %v", es)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		want error
		fn   func(*txn.Txn) error
	}{
		"insert twice":  {txn.ErrExists, func(t *txn.Txn) error { return t.Insert(entry, tables.Num(10), entry.NewRow()) }},
		"update absent": {txn.ErrNotFound, func(t *txn.Txn) error { return t.Update(entry, tables.Num(11), entry.NewRow()) }},
		"delete absent": {txn.ErrNotFound, func(t *txn.Txn) error { return t.Delete(entry, tables.Num(11)) }},
		"get absent":    {txn.ErrNotFound, func(t *txn.Txn) error { _, err := t.Get(acct, tables.Num(999)); return err }},
		"short row":     {tables.ErrRow, func(t *txn.Txn) error { return t.Put(entry, tables.Num(1), make(tables.Row, 3)) }},
		"scan of hash": {tables.ErrSchema, func(t *txn.Txn) error {
			_, err := t.QueueScan(acct.Primary(), tables.Num(0), tables.Num(1), 0).Entries()
			return err
		}},
		"body's own":     {errPoor, func(t *txn.Txn) error { return errPoor }},
		"too many reads": {txn.ErrTooLarge, func(t *txn.Txn) error { return readMany(t, acct) }},
	} {
		if err := db.Update(ctx, c.fn); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if err := db.View(ctx, func(t *txn.Txn) error { return t.Put(entry, tables.Num(1), entry.NewRow()) }); !errors.Is(err, txn.ErrReadOnly) {
		t.Errorf("write in a View: %v", err)
	}
	if _, err := db.Call(ctx, 0, "nope", nil); !errors.Is(err, txn.ErrNoProcedure) {
		t.Errorf("unknown procedure: %v", err)
	}
	if _, err := db.Call(ctx, 99, "transfer", nil); err == nil {
		t.Error("home partition out of range was accepted")
	}
}

func readMany(t *txn.Txn, acct *tables.Table) error {
	for i := uint64(0); ; i++ {
		if g := t.QueueGet(acct, tables.Num(i%10)); i%1000 == 999 {
			if _, err := g.Row(); err != nil {
				return err
			}
		}
	}
}

// TestMoneyIsConserved runs transfers over partitions of several servers, as
// client Updates and as procedures, beside Views that must always see the same
// total, through the rows and through the secondary index.
func TestMoneyIsConserved(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	const accounts, balance = 20, 1000
	cl, acct, _ := startBank(t, 3)
	db := cl.DB
	putAccounts(t, db, acct, accounts, balance)
	deadline := time.Now().Add(1500 * time.Millisecond)
	var wg sync.WaitGroup
	var views int
	var moved atomic.Int64
	more := func() bool { // until something is shown
		now := time.Now()
		return now.Before(deadline) || moved.Load() == 0 && now.Before(deadline.Add(testseed.Patience())) && !t.Failed()
	}
	for w := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rand.New(rand.NewPCG(1, uint64(w)))
			for more() {
				from, to := uint64(r.IntN(accounts)), uint64(r.IntN(accounts))
				if from == to {
					continue
				}
				var err error
				if w%2 == 0 {
					err = db.Update(ctx, func(t *txn.Txn) error { return transfer(t, acct, from, to, 7) })
				} else {
					_, err = db.Call(ctx, HomeOf(db, acct, tables.Num(from)), "transfer", transferArgs(from, to, 7))
					var pe *txn.ProcedureError
					if errors.As(err, &pe) && pe.Text == errPoor.Error() {
						err = nil
					}
				}
				if err != nil && !errors.Is(err, errPoor) {
					t.Errorf("transfer: %v", err)
					return
				}
				moved.Add(1)
			}
		}()
	}
	for more() || views == 0 {
		sum, sec, err := total(ctx, db, acct, accounts)
		if err != nil {
			t.Fatal(err)
		}
		if sum != accounts*balance || sec != accounts*balance {
			t.Fatalf("a View saw %d by rows and %d by the secondary index, want %d", sum, sec, accounts*balance)
		}
		views++
	}
	wg.Wait()
	if moved.Load() == 0 {
		t.Fatal("no transfer: nothing was tested")
	}
	st, err := db.ServerStats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d views beside transfers; server 0: %+v", views, st[0])
	if st[0].Prepared != 0 {
		t.Errorf("%d transactions left in doubt", st[0].Prepared)
	}
}

// TestEmbeddedTables: the tables of a cluster are those of a catalogue or of
// definitions, not both, and faults of definitions are returned.
func TestEmbeddedTables(t *testing.T) {
	def := tables.Def{Name: "t", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByHash}, Columns: []tables.Column{{Name: "c", Type: tables.Int64}}}
	if _, err := Embedded(t.Context(), EmbeddedConfig{Tables: []tables.Definer{def}, Catalog: bank(t)}); !errors.Is(err, ErrConfig) {
		t.Errorf("tables and a catalogue: %v", err)
	}
	if _, err := Embedded(t.Context(), EmbeddedConfig{Tables: []tables.Definer{tables.Def{}}}); !errors.Is(err, tables.ErrSchema) {
		t.Errorf("a bad definition: %v", err)
	}
	if _, err := Embedded(t.Context(), EmbeddedConfig{}); !errors.Is(err, ErrConfig) {
		t.Errorf("no tables: %v", err)
	}
	for _, c := range []struct {
		config EmbeddedConfig
		names  string
	}{
		{EmbeddedConfig{Servers: -1}, "-1 data servers"},
		{EmbeddedConfig{Partitions: -1}, "-1 partitions"},
		{EmbeddedConfig{Durability: Disk}, "without a data directory"},
		{EmbeddedConfig{Replicas: 2}, "2 replicas"},
	} {
		c.config.Tables = []tables.Definer{def}
		if _, err := Embedded(t.Context(), c.config); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.names) || strings.Contains(err.Error(), "Dial") {
			t.Errorf("%v, want an error that names %q", err, c.names)
		}
	}
	c, err := Embedded(t.Context(), EmbeddedConfig{Tables: []tables.Definer{def}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	tab, err := c.DB.Table("t")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.DB.Update(t.Context(), func(x *txn.Txn) error { return x.Insert(tab, tables.Num(1), tab.NewRow()) }); err != nil {
		t.Error(err)
	}
}
