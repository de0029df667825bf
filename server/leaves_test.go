package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/wire"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// mixedCatalog has tables of all engines, so that some indexes have leaves in regions of their
// own and others have not.
func mixedCatalog(t testing.TB) *tables.Catalog {
	t.Helper()
	column := []tables.Column{{Name: "n", Type: tables.Int64}}
	by := tables.Partitioning{Kind: tables.ByBits}
	c, err := tables.NewCatalog(
		tables.Def{Name: "hashed", Primary: tables.Hash, Partition: by, Columns: column},
		tables.Def{Name: "written", Primary: tables.Ordered, Engine: tables.Rolex, Partition: by, Columns: column},
		tables.Def{Name: "binned", Primary: tables.Ordered, Engine: tables.FineStore, Partition: by, Columns: column},
		tables.Def{Name: "kept", Primary: tables.Ordered, Partition: by, Columns: column},
		tables.Def{
			Name: "listed", Primary: tables.Ordered, Engine: tables.Rolex, Partition: by, Columns: column,
			Secondary: []tables.Secondary{{
				Name: "by_n", Partition: tables.Partitioning{Kind: tables.ByHash},
				Key: []tables.KeyPart{{Column: "n", How: tables.Sorted}, {Column: tables.PrimaryKey, How: tables.Sorted}},
			}},
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const mixedRows = 500

// startMixed starts two servers, with the same rows in all tables.
func startMixed(t testing.TB, client txn.Config) (*Cluster, *tables.Catalog) {
	t.Helper()
	return startMixedOver(t, client, nil)
}

func startMixedOver(t testing.TB, client txn.Config, net *inproc.Network) (*Cluster, *tables.Catalog) {
	t.Helper()
	cat := mixedCatalog(t)
	cl, err := Embedded(context.Background(), EmbeddedConfig{Catalog: cat, Servers: 2, Client: client, Network: net})
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
	loadMixed(t, cl, cat, func(k uint64) int64 { return int64(k) })
	return cl, cat
}

// loadMixed loads the same rows into all tables.
func loadMixed(t testing.TB, cl *Cluster, cat *tables.Catalog, n func(key uint64) int64) {
	t.Helper()
	for _, tab := range cat.Tables {
		l, err := cl.DB.NewLoader(context.Background(), tab)
		if err != nil {
			t.Fatal(err)
		}
		for k := range uint64(mixedRows) {
			row := tab.NewRow()
			row.SetInt(tab.Field("n"), n(k))
			if err := l.Add(tables.Num(k), row); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := cl.DB.Seal(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// A transaction reads and writes tables of all engines, whose proofs are in different regions.
func TestEnginesInOneTransaction(t *testing.T) {
	cl, cat := startMixed(t, patient())
	ctx := context.Background()
	for key := uint64(7); key < 11; key++ { // also across servers
		err := cl.DB.Update(ctx, func(tx *txn.Txn) error {
			sum := int64(0)
			for i, tab := range cat.Tables {
				row, err := tx.Get(tab, tables.Num(key+uint64(i&1)))
				if err != nil {
					return fmt.Errorf("%s: %w", tab.Name(), err)
				}
				sum += row.Int(tab.Field("n"))
			}
			for _, tab := range cat.Tables {
				row := tab.NewRow()
				row.SetInt(tab.Field("n"), sum)
				if err := tx.Put(tab, tables.Num(key), row); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		err = cl.DB.View(ctx, func(tx *txn.Txn) error {
			for _, tab := range cat.Tables {
				row, err := tx.Get(tab, tables.Num(key))
				if err != nil {
					return fmt.Errorf("%s: %w", tab.Name(), err)
				}
				if got, want := row.Int(tab.Field("n")), int64(5*key+2); got != want {
					return fmt.Errorf("%s: %d in row %d, want %d", tab.Name(), got, key, want)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A View reads tables of ROLEX with READs alone, and validates a leaf in one round.
func TestLeavesAreReadOneSided(t *testing.T) {
	cl, cat := startMixed(t, txn.Config{Retry: txn.Retry{Attempts: 50}})
	tab := cat.MustTable("written")
	s, err := cl.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	view := func(key uint64) (rounds, reads, rpcs uint64) {
		before := s.Stats()
		if err := s.View(context.Background(), func(tx *txn.Txn) error {
			_, err := tx.Get(tab, tables.Num(key))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		after := s.Stats()
		return after.Rounds - before.Rounds, after.Fabric.Reads - before.Fabric.Reads, after.Fabric.RPCs - before.Fabric.RPCs
	}
	view(1) // fetches models
	view(2)
	for key := uint64(100); key < 200; key++ {
		if rounds, reads, rpcs := view(key); rounds != 2 || reads != 3 || rpcs != 0 {
			t.Errorf("row %d: %d rounds, %d READs, %d RPCs; want 2, 3 and none", key, rounds, reads, rpcs)
		}
	}
}

// An Update whose leaf another one has changed since it was read is not committed.
func TestLeafProofsAreChecked(t *testing.T) {
	cl, cat := startMixed(t, patient())
	tab := cat.MustTable("written")
	field, ctx := tab.Field("n"), context.Background()
	add := func(key uint64, between func()) error {
		return cl.DB.Update(ctx, func(tx *txn.Txn) error {
			row, err := tx.Get(tab, tables.Num(key))
			if err != nil {
				return err
			}
			row = row.Clone()
			row.SetInt(field, row.Int(field)+1)
			between()
			return tx.Update(tab, tables.Num(key), row)
		})
	}
	attempts := 0
	err := add(20, func() {
		if attempts++; attempts > 1 {
			return
		}
		if err := add(20, func() {}); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if attempts != 2 {
		t.Errorf("%d attempts, want 2", attempts)
	}
	if err := cl.DB.View(ctx, func(tx *txn.Txn) error {
		row, err := tx.Get(tab, tables.Num(20))
		if err == nil && row.Int(field) != 22 {
			err = fmt.Errorf("%d, want 22: an increment is lost", row.Int(field))
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// Snapshots refuse tables that keep no versions, by name, and at once.
func TestSnapshotsNeedVersions(t *testing.T) {
	cl, cat := startMixed(t, patient())
	read := func(name string) error {
		return cl.DB.Snapshot(context.Background(), func(tx *txn.Txn) error {
			_, err := tx.Get(cat.MustTable(name), tables.Num(3))
			return err
		})
	}
	if err := read("kept"); err != nil {
		t.Error(err)
	}
	err := read("written")
	var old *txn.SnapshotTooOld
	if !errors.Is(err, txn.ErrSnapshotTooOld) || !errors.As(err, &old) || old.Table != "written" || !strings.Contains(err.Error(), "table written of engine rolex keeps no versions") {
		t.Errorf("%v, want one that names the table", err)
	}
	if err := read("binned"); !errors.Is(err, txn.ErrSnapshotTooOld) || !strings.Contains(err.Error(), "table binned of engine finestore keeps no versions") {
		t.Errorf("%v, want one that names the table", err)
	}
	scan := cl.DB.Snapshot(context.Background(), func(tx *txn.Txn) error {
		_, err := tx.QueueScan(cat.MustTable("listed").Primary(), tables.Num(1), tables.Num(9), 3).Entries()
		return err
	})
	if !errors.Is(scan, txn.ErrSnapshotTooOld) {
		t.Errorf("a scan: %v, want %v", scan, txn.ErrSnapshotTooOld)
	}
	if err := cl.DB.Snapshot(context.Background(), func(tx *txn.Txn) error {
		_, err := tx.QueueScan(cat.MustTable("listed").Secondary("by_n"), tables.Str("\x80"), tables.Last, 3).Entries()
		return err
	}); err != nil {
		t.Errorf("a scan of a secondary index, which keeps versions: %v", err)
	}
}

// A View that writers invalidate does not go on as a Snapshot if it reads a table without
// versions: it commits when they pause.
func TestViewsWithoutVersionsGoOn(t *testing.T) {
	cl, cat := startMixed(t, patient())
	tab := cat.MustTable("written")
	ctx := context.Background()
	s, err := cl.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	attempts := 0
	if err := s.View(ctx, func(tx *txn.Txn) error {
		row, err := tx.Get(tab, tables.Num(30))
		if err != nil {
			return err
		}
		if attempts++; attempts <= 100 { // more than invalidated Views make before a Snapshot
			row = row.Clone()
			return cl.DB.Update(ctx, func(other *txn.Txn) error {
				row.SetInt(tab.Field("n"), int64(attempts))
				return other.Update(tab, tables.Num(30), row)
			})
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); attempts != 101 || st.Snapshots != 0 {
		t.Errorf("%d attempts and %d Snapshots, want 101 and none", attempts, st.Snapshots)
	}
}

// A table of ROLEX can be added to a running cluster, and has its regions at all servers.
func TestAddTableOfRolex(t *testing.T) {
	cl, _ := startMixed(t, patient())
	ctx := context.Background()
	tab, err := cl.DB.AddTable(ctx, tables.Def{
		Name: "later", Primary: tables.Ordered, Engine: tables.Rolex, Partition: tables.Partitioning{Kind: tables.ByBits}, Columns: []tables.Column{{Name: "n", Type: tables.Int64}},
	})
	if err != nil {
		t.Fatal(err)
	}
	const rows = 300
	for k := range uint64(rows) {
		if err := cl.DB.Update(ctx, func(tx *txn.Txn) error {
			row := tab.NewRow()
			row.SetInt(tab.Field("n"), int64(k))
			return tx.Insert(tab, tables.Num(k), row)
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := cl.DB.View(ctx, func(tx *txn.Txn) error {
		for k := range uint64(rows) {
			if row, err := tx.Get(tab, tables.Num(k)); err != nil || row.Int(tab.Field("n")) != int64(k) {
				return fmt.Errorf("row %d: %w", k, err)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// What keeps data in memory only is refused by data servers with a data directory, before they
// serve and afterwards.
func TestDurableServersRefuseWhatIsInMemory(t *testing.T) {
	ctx := context.Background()
	_, err := Embedded(ctx, EmbeddedConfig{Catalog: mixedCatalog(t), Servers: 1, Durability: Disk, Dir: t.TempDir()})
	if want := "table written of engine rolex with durability disk, want memory"; !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	cl, err := Embedded(ctx, EmbeddedConfig{Catalog: bank(t), Servers: 1, Durability: Disk, Dir: t.TempDir(), Client: patient()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	_, err = cl.DB.AddTable(ctx, tables.Def{
		Name: "later", Primary: tables.Ordered, Engine: tables.Rolex, Partition: tables.Partitioning{Kind: tables.ByHash}, Columns: []tables.Column{{Name: "n", Type: tables.Int64}},
	})
	if want := "engine rolex keeps data in memory only"; !errors.Is(err, tables.ErrSchema) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}

	if _, err := cl.DB.AddTable(ctx, tables.Def{
		Name: "binned", Primary: tables.Ordered, Engine: tables.FineStore, Partition: tables.Partitioning{Kind: tables.ByHash}, Columns: []tables.Column{{Name: "n", Type: tables.Int64}},
	}); err != nil {
		t.Errorf("a table of engine finestore that is added: %v", err)
	}

	twinned := tables.Def{
		Name: "twinned", Primary: tables.Hash, Twin: tables.TwinNext, Partition: tables.Partitioning{Kind: tables.ByHash}, Columns: []tables.Column{{Name: "n", Type: tables.Int64}},
	}
	_, err = cl.DB.AddTable(ctx, twinned)
	if want := "twin next keeps data in memory only"; !errors.Is(err, tables.ErrSchema) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	cat, err := tables.NewCatalog(twinned)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Embedded(ctx, EmbeddedConfig{Catalog: cat, Servers: 1, Durability: Disk, Dir: t.TempDir()})
	if want := "table twinned of twin next with durability disk, want memory"; !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	for _, twin := range []tables.Twin{tables.TwinLocal, tables.TwinSync} {
		twinned.Name, twinned.Twin = "twinned_"+string(twin), twin
		if _, err := cl.DB.AddTable(ctx, twinned); err != nil {
			t.Errorf("a table with a %s twin that is added: %v", twin, err)
		}
	}
}

// newMixedRig is a rig with a table of ROLEX.
func newMixedRig(t *testing.T) (*Server, *partition, *tables.Table) {
	t.Helper()
	cat := mixedCatalog(t)
	cl, err := Embedded(t.Context(), EmbeddedConfig{Catalog: cat, Servers: 1, Client: patient()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cl.Servers[0].Check(); err != nil {
			t.Error(err)
		}
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	})
	return cl.Servers[0], cl.Servers[0].parts.of[0], cat.MustTable("written")
}

// TestPreparedReadsStay for leaves that are locked as a whole.
func TestPreparedLeavesStay(t *testing.T) {
	t.Parallel()
	preparedReadsStay(t, newMixedRig)
}

// Between its vote and its decision, what a transaction has read in leaves that clients may write
// is held: a writer does not know of a data server's shared locks. Other transactions of data
// servers may read it. Afterwards its header is what it was, so that other proofs stay good.
func TestPreparedReadsHoldLeaves(t *testing.T) {
	s, p, tab := newMixedRig(t)
	keys := make([]uint64, 100)
	for i := range keys {
		keys[i] = uint64(10 * i)
	}
	putEntries(t, s, tab, keys...)
	id := tab.Primary().ID
	header := func(pr index.Proof) uint64 {
		_, addr := index.RegionOf(pr.Addr)
		at, ok := p.has.Load().indexes[id].leaves.region.Span(addr, 8)
		if !ok {
			t.Fatalf("no leaf at %#x", addr)
		}
		return at.Load(0)
	}
	row, gap := proofsOf(t, p, tab, 10, index.Found), proofsOf(t, p, tab, 905, index.NotFound)
	read := wire.Part{Rows: row, Gaps: gap}
	first, v := p.prepare(&read)
	if !v.ok() {
		t.Fatal(v)
	}
	for _, pr := range []index.Proof{row[0], gap[0]} {
		if header(pr) == pr.Word {
			t.Errorf("leaf %#x can be written while a transaction that has read it is prepared", pr.Addr)
		}
	}
	if got := proofsOf(t, p, tab, 10, index.Found); got[0] != row[0] {
		t.Errorf("the proof of a row that is only read is %+v meanwhile, want %+v", got[0], row[0])
	}
	p.mu.Lock()
	if v := p.validate(&read); !v.ok() {
		t.Errorf("what is only read does not stand: %+v", v)
	}
	p.mu.Unlock()
	second, v := p.prepare(&read)
	if !v.ok() {
		t.Fatal(v)
	}
	first.decide(true, first.vote)
	for _, pr := range []index.Proof{row[0], gap[0]} {
		if header(pr) == pr.Word {
			t.Errorf("leaf %#x can be written while a second transaction that has read it is prepared", pr.Addr)
		}
	}
	second.decide(false, 0)
	for _, pr := range []index.Proof{row[0], gap[0]} {
		if got := header(pr); got != pr.Word {
			t.Errorf("the header of leaf %#x is %#x after it was only read, want %#x", pr.Addr, got, pr.Word)
		}
	}

	stale := row[0]
	if conflicts(p, writeOf(tab, wire.Update, 10)) {
		t.Fatal("row 10 is still locked")
	}
	if _, v := p.prepare(&wire.Part{Rows: []index.Proof{stale}}); v.code != wire.Conflict || v.cause != exec.CauseRow {
		t.Errorf("a prepare that read a row which has changed since: %+v", v)
	}
	if !p.writer.shared.Empty() {
		t.Error("shared locks are left")
	}
}

// A View of a table without versions is repeated when a writer invalidates it, also if it took so long
// that a View of other tables would go on as a Snapshot at once.
func TestLongViewsWithoutVersionsGoOn(t *testing.T) {
	cl, cat := startMixed(t, patient())
	tab := cat.MustTable("written")
	runs := 0
	err := cl.DB.View(context.Background(), func(tx *txn.Txn) error {
		runs++
		if _, err := tx.Get(tab, tables.Num(7)); err != nil {
			return err
		}
		if runs > 2 {
			return nil
		}
		if err := putN(cl.DB, tab, 7, int64(runs)); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * clock.TickLength)
		return nil
	})
	if err != nil || runs != 3 {
		t.Errorf("%d runs: %v", runs, err)
	}
}
